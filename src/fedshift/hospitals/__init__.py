"""Studies between real sites: what both sides agree on, and the side of a site and of the server, over any connection.

What carries the messages lies above, in `flower` and `nvflare`. Nothing here knows of addresses, ports or keys.
"""
