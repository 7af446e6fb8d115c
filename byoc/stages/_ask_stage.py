"""The stage that asks codegens about a model's units before they are placed."""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from byoc import bundle, codegen
from byoc.codegen import Codegens
from byoc.stages._codegen_answers import ask_codegens
from byoc.stages._settings_loader import choose_by_target
from byoc.stages._whole_estimates import correct_by_estimates

if TYPE_CHECKING:
    from byoc.stages._state import State


@dataclass(frozen=True)
class Ask:
    """Ask the targets' codegens which units their compilers take, and what they cost.

    Codegens run in processes of their own. Nothing is asked unless the options say so, nor a second time
    about the same model. Raises InputError when a codegen cannot be loaded or asked.
    """

    def run(self, state: State) -> State:
        """Fill in `answers`; update the settings' known limits and costs."""
        options, settings = state.options, state.settings
        if options.ask is None:
            return state
        answers = state.answers
        if answers is None or answers.model is not state.model:
            names = choose_by_target(
                settings.targets, options.codegen, "codegen", lambda target: target.rules.codegen
            )
            cache = options.open_cache()
            with closing(Codegens(options.isolation or codegen.Isolation())) as codegens:
                given = options.codegen_options or {}
                compilers = bundle.load_compilers(settings.targets, names, given, codegens, cache)
                units = state.units[id(state.index)]
                answers = ask_codegens(
                    state.model, state.index, units, settings, compilers, options.ask, cache
                )
                if options.ask != "legality":
                    answers = correct_by_estimates(state, answers, compilers, cache)
        return replace(state, answers=answers, settings=answers.heed(settings))
