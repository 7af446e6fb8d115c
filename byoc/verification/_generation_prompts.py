"""The prompts of generated sequences: lengths that reach each variant of a bundle."""

from byoc.runtime import Session, VariantSession
from byoc.samples import DecoderInputs
from byoc.verification._generation_limit import GenerationLimit

# Where a length is open, all lengths reach the same variants: these are the shortest prompt, and two of
# odd lengths below and above 32 positions.
_OPEN_PROMPTS = (1, 7, 33)


def list_prompt_lengths(session: Session | VariantSession, decoder: DecoderInputs) -> tuple[int, ...]:
    """Return lengths of prompts that reach each variant: its own, and the least padded to it."""
    variants = session.sessions.values() if isinstance(session, VariantSession) else [session]
    extents = [(each.types[decoder.tokens].shape or ())[1] for each in variants]
    own = sorted({extent for extent in extents if isinstance(extent, int)})
    if len(own) < len(set(extents)):
        return _OPEN_PROMPTS
    limit = GenerationLimit(session, decoder)
    least = [1, *(extent + 1 for extent in own)]
    lengths = sorted({length for pair in zip(least, own, strict=False) for length in pair})
    return tuple(length for length in lengths if limit.can_begin(length)) or (own[0],)
