"""Class names as vectors: built-in encoders that run anywhere, tables of features, local text towers.

Nothing is ever downloaded; what an encoder is goes into the record of the run by its identity.
"""

from fedfeat.methods.class_names.features import TextFeatures, check_text, class_features, encoder_name, text_width
from fedfeat.methods.class_names.settings import TextSettings

__all__ = ["TextFeatures", "TextSettings", "check_text", "class_features", "encoder_name", "text_width"]
