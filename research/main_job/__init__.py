"""The main job, ``python sim.py`` without flags, over seeds and machines: docs/main_job.json and the page from it.

One run on one machine is one draw. A search that ends near the threshold of recovery finds an image with one seed and
misses it with another, and on another processor, whose sums round in another order, as well.
"""
