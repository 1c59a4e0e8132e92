"""One experiment as data: the whole configuration, presets by name, methods from outside."""

from fedfeat.config.config import Config, differing_keys, load_config, make_config, parse_config, parse_override

__all__ = ["Config", "differing_keys", "load_config", "make_config", "parse_config", "parse_override"]
