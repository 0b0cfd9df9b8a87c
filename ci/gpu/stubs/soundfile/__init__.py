"""Stands in for soundfile, which SGLang imports for audio inputs."""
