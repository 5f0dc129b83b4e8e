"""The backend of locks in etcd, over etcd's own HTTP/JSON gateway."""
