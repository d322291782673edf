"""Federations of real sites over NVFlare: a controller at the server, an executor at each site, and their messages.

NVFlare brings keys, certificates and processes; a job names these two classes of the installed package, and no code.
"""
