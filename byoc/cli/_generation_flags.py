"""The flags of `byoc verify --generate`, and what it prints: generated sequences compared."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import typer

import byoc
from byoc import reporting, verification
from byoc.cli._common import OutputFormat, print_json, print_rows, reserve_stdout, show_status
from byoc.cli._option_flags import LoadOptions, flag_field
from byoc.console import print_line
from byoc.support import Flag, Syntax

_SEEDS = 2


def _read_lengths(text: str) -> tuple[int, ...]:
    """Return the whole numbers of a list, none for an empty text. Raises ValueError."""
    parts = [part.strip() for part in text.split(",")] if text else []
    if not all(part.isascii() and part.isdigit() and int(part[:9]) for part in parts):
        raise ValueError(f"'{text}' is no list of lengths, such as 1,64")
    return tuple(int(part[:9]) for part in parts)


@dataclass(frozen=True)
class GenerationFlags:
    """The flags of `byoc verify` that are about generated sequences."""

    generate: int | None = flag_field(
        Flag(
            "Of a decoder, compare so many generated tokens, its state fed back, instead of samples.",
            Syntax.INTEGER,
            minimum=1,
            metavar="TOKENS",
        )
    )
    prompts: tuple[int, ...] | None = flag_field(
        Flag(
            "With --generate, the lengths of prompts; those that reach each variant unless given.",
            metavar="LENGTH,LENGTH,...",
            read=_read_lengths,
        )
    )
    seeds: int | None = flag_field(
        Flag(
            "With --generate, how many prompts of each length, from --seed on; 2 unless given.",
            Syntax.INTEGER,
            minimum=1,
        )
    )

    @property
    def is_asked(self) -> bool:
        """Whether sequences are to be generated. Raises typer.BadParameter for other flags alone."""
        others = {"--prompts": self.prompts, "--seeds": self.seeds}
        given = next((name for name, value in others.items() if value is not None), None)
        if self.generate is None and given is not None:
            raise typer.BadParameter("it is about --generate", param_hint=given)
        return self.generate is not None

    def verify(
        self,
        bundle: Path,
        load: LoadOptions,
        against: str | None,
        seed: int,
        thresholds: byoc.Thresholds,
    ) -> byoc.Generation:
        """Compare generated sequences. Raises InputError."""
        assert self.generate is not None
        options = verification.GenerationOptions(
            self.generate, self.prompts or (), self.seeds or _SEEDS, seed
        )
        with show_status() as show, reserve_stdout():
            show("generate")
            return verification.GenerationCheck(
                load.open_bundle(bundle), against, options, thresholds
            ).verify()


DEFAULT_GENERATION_FLAGS = GenerationFlags()


def print_generation(generation: byoc.Generation, bundle: str, form: OutputFormat) -> None:
    """Print generated sequences: a table of them, one of positions, and each token that differs."""
    if form is OutputFormat.json:
        print_json(reporting.make_generation_report(generation).to_json())
        return
    by = f", run by {generation.judge}" if generation.judge else ""
    print_line(f"{bundle} against {generation.against}{by}, token by token:")
    print_rows(reporting.make_sequence_rows(generation.runs), OutputFormat.text)
    print_line("The largest errors of all sequences, as shares of the range:")
    print_rows(reporting.make_position_rows(generation), OutputFormat.text)
    for run in generation.runs:
        for each in run.differences:
            told = "a tie" if each.is_tie else "wrong"
            print_line(
                f"{told}: seed {run.seed}, prompt of {run.prompt}, position {each.position}: token "
                f"{each.found} instead of {each.expected}, {each.margin:.2g} below it; noise explains "
                f"{each.noise:.2g}"
            )
    if generation.not_reached:
        names = ", ".join(generation.not_reached)
        print_line(f"note: no step ran {names}; other lengths (--prompts) or more tokens may")
    for name, reason in generation.not_here.items():
        print_line(f"{name} is compiled, not verified here: {reason}")
