"""Makes `toy`, the small networks and clients that many tests share, importable from every folder of tests."""


def pytest_make_parametrize_id(val: object) -> str | None:
    """Bytes have no place in a test's name: archives hold the time of their making, and each worker makes its own."""
    return "bytes" if isinstance(val, bytes) else None
