"""Plug-ins: one file each, found by discovery."""
