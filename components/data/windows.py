"""How many windows a source has; apart from the samples, which need torch."""

from components.data.manifest import Manifest


def windows_per_source(manifest: Manifest, sequence_length: int) -> dict[str, int]:
    """Count the whole training windows of each source."""
    return {
        name: max(0, (source.train_tokens - 1) // sequence_length)
        for name, source in manifest.sources.items()
    }
