"""CLIP2FL: a frozen vision-language teacher on clients, synthetic features on the server."""

from fedfeat.methods.clip2fl import clip2fl as clip2fl
