"""The prompts of generated sequences: lengths that reach each variant of a bundle."""

from byoc.errors import InputError
from byoc.runtime import Session, VariantSession
from byoc.samples import DecoderInputs

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
    least = [1, *(extent + 1 for extent in own)]
    lengths = sorted({length for pair in zip(least, own, strict=False) for length in pair})
    return tuple(length for length in lengths if _can_begin(session, decoder, length)) or (own[0],)


def _can_begin(session: Session | VariantSession, decoder: DecoderInputs, length: int) -> bool:
    """Return whether a variant reads a prompt of a length."""
    tokens = decoder.draw_prompt(0, length)
    state = decoder.make_empty_state(length)
    inputs = decoder.make_step(tokens, 0, decoder.make_kept(0, length)) | state
    try:
        if isinstance(session, VariantSession):
            session.fit(inputs)
        else:
            session.check_inputs(inputs)
    except InputError:
        return False
    return True
