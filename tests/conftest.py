"""Makes `toy`, the small networks and clients that many tests share, importable from every folder of tests."""
