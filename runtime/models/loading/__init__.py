"""From an embedded model's name, a GGUF file, a Hugging Face folder or a hub id to a model that computes."""

from ramet.runtime.models.loading.loader import LoadedModel, load_model
from ramet.runtime.models.loading.source import ModelSource, resolve

__all__ = ["LoadedModel", "ModelSource", "load_model", "resolve"]
