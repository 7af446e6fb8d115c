"""Reading a rule file: a path or a built-in name to a checked `Target`."""

from dataclasses import dataclass
from functools import cached_property

from byoc.patterns.pattern import Pattern, parse
from byoc.plugins import ANNOTATIONS, find_file
from byoc.rules.lint import lint
from byoc.rules.schema import RuleFile
from byoc.yamlfile import check, read_mapping, wrong


@dataclass(frozen=True, eq=False)
class Target:
    """An accelerator as a rule file describes it; `source` is what the user called the file."""

    source: str
    rules: RuleFile

    @property
    def name(self) -> str:
        """The target's name, which is also the last part of its functions' domain."""
        return self.rules.target

    @property
    def domain(self) -> str:
        """The ONNX domain of the functions made for this target."""
        return f"byoc.{self.name}"

    @cached_property
    def patterns(self) -> tuple[Pattern, ...]:
        """The composites, in the order of the file."""
        return tuple(parse(rule.name, rule.pattern) for rule in self.rules.composites)


def load_rules(name: str) -> Target:
    """Return the target that a rule file describes; `name` is a path, or a built-in file's name.

    Raises InputError with a line for every mistake in the file.
    """
    path = find_file(ANNOTATIONS, name)
    content = read_mapping(path)
    rules, problems = check(content, RuleFile)
    problems += lint(content)
    if rules is None or problems:
        raise wrong(path, problems)
    return Target(name, rules)
