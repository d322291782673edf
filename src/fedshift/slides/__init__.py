"""Whole slides cut into patches: `fedshift patches` reads a table of slides and writes images and a table of them.

The dataset `own_images` reads that table. Nothing here belongs to the training of a study, and OpenSlide is loaded only
when a slide is opened.
"""
