"""Flow matching on public images: a velocity network, its denoiser, and searches that use it as a prior."""
