"""One file for each step of the workflow that computes results, and the files that these steps share.

A job reads and writes files, takes a device, and survives a kill at any moment.
What it computes is in the layers below.
"""
