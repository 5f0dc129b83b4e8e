"""The demo's S3, for each of its processes."""

from obstore.store import S3Store


def open_store(url: str, bucket: str) -> S3Store:
    """Open a bucket of an S3 that takes any key. A real S3 needs its region; obstore finds the credentials itself."""
    return S3Store(
        bucket,
        endpoint=url,
        region="us-east-1",
        access_key_id="demo",
        secret_access_key="demo",
        client_options={"allow_http": True},
    )
