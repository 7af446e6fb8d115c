"""Check of cost models against an objective with joules in it."""

from math import isnan

from byoc.costs import CostFile, CostModel, CostTable, Fallback, Linear, price_launch, transfer_prices
from byoc.errors import InputError
from byoc.planning import PlanSettings


def check_joules(settings: PlanSettings) -> None:
    """Raise InputError where the objective counts joules and a cost model never gives any."""
    if not settings.objective.energy:
        return
    names = _find_without_joules(settings)
    if names:
        models = "cost models" if len(names) > 1 else "cost model"
        give = "give" if len(names) > 1 else "gives"
        told = f"{models} {', '.join(names)} {give} no joules"
        raise InputError(f"objective {settings.objective}: {told}")


def _find_without_joules(settings: PlanSettings) -> list[str]:
    """Return the names of the cost models that never give joules."""
    names = [settings.host.name] if _lacks_joules(settings.host) else []
    names += [
        costs.name for costs in settings.costs if _moves_without_joules(costs) or _lacks_joules(costs)
    ]
    return list(dict.fromkeys(names))


def _moves_without_joules(model: CostModel) -> bool:
    return isnan(price_launch(model).joules) or isnan(float(transfer_prices(model, [1])[1][0]))


def _lacks_joules(model: CostModel) -> bool:
    """Return whether a model gives no joules for any operator; a plug-in is taken to give them."""
    if isinstance(model, Fallback):
        return _lacks_joules(model.first) and _lacks_joules(model.second)
    if not isinstance(model, CostFile) or model.energy is not None:
        return False
    if isinstance(model, CostTable):
        return all(entry.joules is None for entry in model.entries)
    if isinstance(model, Linear):
        lines = (*model.operators.values(), model.estimates)
        return all(line is None or line.joules is None for line in lines)
    return True
