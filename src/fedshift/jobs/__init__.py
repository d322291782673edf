"""One file for each step of the workflow: prepare, train, predict, and apply to new images.

A job reads and writes files, takes a device, and survives a kill at any moment.
What it computes is in the rooms below.
"""
