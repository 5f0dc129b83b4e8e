"""Google Cloud Storage's XML API, as far as clients need it: `python -m tests.support.servers.gcs_app PORT`.

Not Google's, and not from looking at the real one: ours, after Google's documentation, because no emulator at hand
decides and stores as one step. The pages, all under https://cloud.google.com/storage/docs/:
request-preconditions, xml-api/reference-headers, xml-api/put-object-upload, xml-api/get-object-download,
xml-api/head-object, xml-api/delete-object, xml-api/put-object-copy, xml-api/put-object-acls,
xml-api/get-bucket-list, multipart-uploads, xml-api/post-object-multipart and its siblings, metadata.

What those pages leave open, and how it is here: a generation that has to match where there is no object gets a 412; a
precondition on a step of an upload in parts, where the pages say that there are none, gets a 400. Anybody may do
everything. There is no object versioning: a generation that is gone is gone.
"""

import email.utils
import re
import sys
import urllib.parse
import xml.etree.ElementTree as Xml
from collections.abc import Mapping
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from tests.support.servers.gcs_state import Conditions, Object, Refused, State

_NAMESPACE = "http://doc.s3.amazonaws.com/2006-03-01"
_PAGE = 1000
_STORED = re.compile(r"(cache-control|content-(type|disposition|encoding|language)|x-goog-meta-.+)", re.IGNORECASE)


class Server(ThreadingHTTPServer):
    request_queue_size = 128
    daemon_threads = True

    def __init__(self, port: int) -> None:
        self.state = State()
        super().__init__(("127.0.0.1", port), Handler)


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    wbufsize = -1  # headers and body in one piece
    server: Server

    def log_message(self, *_: object) -> None:
        pass  # a line per request is of no use

    def _handle(self) -> None:
        parts = urllib.parse.urlsplit(self.path)
        bucket, _, key = parts.path.removeprefix("/").partition("/")
        self.bucket, self.key = urllib.parse.unquote(bucket), urllib.parse.unquote(key)
        self.query = dict(urllib.parse.parse_qsl(parts.query, keep_blank_values=True))
        if "Transfer-Encoding" in self.headers:
            self.close_connection = True
            return self._reply(411, b"")
        length = int(self.headers.get("Content-Length") or 0)
        self.body = self.rfile.read(length)  # before anything is decided: a client may stop in the middle
        if len(self.body) < length:
            self.close_connection = True
            return None
        try:
            action = getattr(self, f"_{self.command.lower()}_{'object' if key else 'bucket'}", None)
            if action is None:
                raise Refused(405, "MethodNotAllowed")
            action()
        except Refused as refused:
            self._reply_xml(refused.status, "Error", {"Code": refused.code, "Message": refused.code})

    do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = _handle  # noqa: N815 - what the base class calls

    # Replies

    def _reply(self, status: int, body: bytes, headers: Mapping[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        if status != 304:
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def _reply_xml(self, status: int, name: str, values: Mapping[str, str], headers: Mapping[str, str] = {}) -> None:
        root = Xml.Element(name, xmlns=_NAMESPACE) if status == 200 else Xml.Element(name)
        for child, text in values.items():
            Xml.SubElement(root, child).text = text
        self._reply_tree(status, root, headers)

    def _reply_tree(self, status: int, root: Xml.Element, headers: Mapping[str, str] = {}) -> None:
        body = b"" if status == 304 else Xml.tostring(root, "utf-8", xml_declaration=True)
        self._reply(status, body, {"Content-Type": "application/xml; charset=UTF-8", **headers})

    # Buckets

    def _put_bucket(self) -> None:
        self.server.state.create_bucket(self.bucket)
        self._reply(200, b"")

    def _get_bucket(self) -> None:
        """List, version 2: pages in the order of the keys' bytes, with what a delimiter groups as one entry."""
        prefix, delimiter = self.query.get("prefix", ""), self.query.get("delimiter", "")
        after = self.query.get("continuation-token") or self.query.get("start-after", "")
        limit = min(int(self.query.get("max-keys", _PAGE)), _PAGE)
        entries: dict[str, Object | None] = {}
        for key, live in self.server.state.keys(self.bucket):
            if key.startswith(prefix):
                head, found, _ = key[len(prefix) :].partition(delimiter) if delimiter else (key, "", "")
                entries.setdefault(prefix + head + found if found else key, None if found else live)
        rest = [(name, entry) for name, entry in entries.items() if name.encode() > after.encode()]
        page = rest[:limit]
        root = Xml.Element("ListBucketResult", xmlns=_NAMESPACE)
        values = {"Name": self.bucket, "Prefix": prefix, "KeyCount": str(len(page))}
        values["IsTruncated"] = "true" if len(rest) > limit else "false"
        if len(rest) > limit:
            values["NextContinuationToken"] = page[-1][0]
        for child, text in values.items():
            Xml.SubElement(root, child).text = text
        for name, entry in page:
            element = Xml.SubElement(root, "CommonPrefixes" if entry is None else "Contents")
            for child, text in ({"Prefix": name} if entry is None else _listed(name, entry)).items():
                Xml.SubElement(element, child).text = text
        self._reply_tree(200, root)

    # Objects

    def _conditions(self) -> Conditions:
        texts = [self.headers.get(f"x-goog-if-{name}-match") for name in Conditions._fields]
        if any(text is not None and not text.isdecimal() for text in texts):
            raise Refused(400, "InvalidArgument")
        return Conditions(*(None if text is None else int(text) for text in texts))

    def _conditions_of_put(self) -> Conditions:
        conditions = self._conditions()
        if conditions.metageneration is not None and conditions.generation is None:
            raise Refused(400, "InvalidArgument")  # on a put it counts only together with a generation
        return conditions

    def _stored_headers(self) -> dict[str, str]:
        return {name.lower(): value for name, value in self.headers.items() if _STORED.fullmatch(name)}

    def _get_object(self) -> None:
        live = self.server.state.get(self.bucket, self.key)
        if self.query.get("generation", str(live.generation)) != str(live.generation):
            raise Refused(404, "NoSuchKey")
        self._conditions().check(live)
        headers = {"Accept-Ranges": "bytes", **_described(live), **live.headers}
        self._check_headers_of_get(live)
        start, end = self._range(len(live.content))
        if (start, end) != (0, len(live.content)):
            headers["Content-Range"] = f"bytes {start}-{end - 1}/{len(live.content)}"
        self._reply(206 if "Content-Range" in headers else 200, live.content[start:end], headers)

    _head_object = _get_object

    def _check_headers_of_get(self, live: Object) -> None:
        """RFC 9110, section 13.2.2: the ETags go before the dates, what must match before what must not."""
        modified = int(live.modified)
        must, must_not = self.headers.get("If-Match"), self.headers.get("If-None-Match")
        until, since = self.headers.get("If-Unmodified-Since"), self.headers.get("If-Modified-Since")
        if must is not None and not _names(must, live.etag):
            raise Refused(412, "PreconditionFailed")
        if must is None and until is not None and modified > _seconds(until):
            raise Refused(412, "PreconditionFailed")
        if must_not is not None and _names(must_not, live.etag):
            raise Refused(304, "NotModified")
        if must_not is None and since is not None and modified <= _seconds(since):
            raise Refused(304, "NotModified")

    def _range(self, size: int) -> tuple[int, int]:
        match = re.fullmatch(r"bytes=(\d*)-(\d*)", self.headers.get("Range", ""))
        if match is None or match.groups() == ("", ""):
            return 0, size
        first, last = match.groups()
        start = int(first) if first else max(size - int(last), 0)
        end = min(int(last) + 1, size) if first and last else size
        if start >= end:
            raise Refused(416, "InvalidRange")
        return start, end

    def _put_object(self) -> None:
        state = self.server.state
        if "uploadId" in self.query:
            self._refuse_conditions()
            number = int(self.query.get("partNumber", 0))
            etag = state.put_part(self.query["uploadId"], self.bucket, self.key, number, self.body)
            return self._reply(200, b"", {"ETag": f'"{etag}"'})
        conditions = self._conditions_of_put()
        if "acl" in self.query:
            return self._reply(200, b"", _described(state.change_metadata(self.bucket, self.key, conditions)))
        if source := self.headers.get("x-goog-copy-source"):
            bucket, _, key = urllib.parse.unquote(source).removeprefix("/").partition("/")
            made = state.copy((bucket, key), self.bucket, self.key, conditions)
            values = {"LastModified": _time(made.modified), "ETag": f'"{made.etag}"'}
            return self._reply_xml(200, "CopyObjectResult", values, _described(made))
        made = state.put(self.bucket, self.key, self.body, self._stored_headers(), conditions)
        return self._reply(200, b"", _described(made))

    def _post_object(self) -> None:
        self._refuse_conditions()
        values = {"Bucket": self.bucket, "Key": self.key}
        if "uploads" in self.query:
            values["UploadId"] = self.server.state.start_upload(self.bucket, self.key, self._stored_headers())
            return self._reply_xml(200, "InitiateMultipartUploadResult", values)
        try:
            parts = [{_local(each.tag): each.text or "" for each in part} for part in Xml.fromstring(self.body)]
            wanted = [(int(part["PartNumber"]), part["ETag"].strip('"')) for part in parts]
        except (Xml.ParseError, KeyError, ValueError):
            raise Refused(400, "MalformedXML") from None
        made = self.server.state.complete(self.query.get("uploadId", ""), self.bucket, self.key, wanted)
        values["ETag"] = f'"{made.etag}"'
        return self._reply_xml(200, "CompleteMultipartUploadResult", values, _described(made))

    def _delete_object(self) -> None:
        if "uploadId" in self.query:
            self.server.state.abort(self.query["uploadId"], self.bucket, self.key)
        else:
            self.server.state.delete(self.bucket, self.key, self._conditions())
        self._reply(204, b"")

    def _refuse_conditions(self) -> None:
        if any(value is not None for value in self._conditions()):
            raise Refused(400, "InvalidArgument")


def _described(live: Object) -> dict[str, str]:
    return {
        "ETag": f'"{live.etag}"',
        "Last-Modified": email.utils.formatdate(live.modified, usegmt=True),
        "x-goog-generation": str(live.generation),
        "x-goog-metageneration": str(live.metageneration),
        "x-goog-stored-content-length": str(len(live.content)),
    }


def _listed(key: str, live: Object) -> dict[str, str]:
    return {
        "Key": key,
        "Generation": str(live.generation),
        "MetaGeneration": str(live.metageneration),
        "LastModified": _time(live.modified),
        "ETag": f'"{live.etag}"',
        "Size": str(len(live.content)),
    }


def _time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _seconds(date: str) -> float:
    return email.utils.parsedate_to_datetime(date).timestamp()


def _names(header: str, etag: str) -> bool:
    return header.strip() == "*" or etag in (each.strip().removeprefix("W/").strip('"') for each in header.split(","))


def _local(tag: str) -> str:
    return tag.rpartition("}")[2]


def main(port: int) -> None:
    server = Server(port)
    print("serving GCS", flush=True)
    server.serve_forever()


if __name__ == "__main__":
    main(int(sys.argv[1]))
