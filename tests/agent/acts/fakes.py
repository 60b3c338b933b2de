"""A context and a unit as the agent would give them, without the agent."""

from __future__ import annotations

from types import SimpleNamespace

import torch

from flatout.agent.context import Context
from flatout.agent.protocol import Spec


def make_context(*names: str) -> Context:
    """A context whose plan has the techniques ``names``; acts are made by :func:`make_acts`."""
    context = Context(Spec(trial_dir=""), lambda event: None)
    context.torch = torch
    context.acts = dict.fromkeys(names)
    return context


def make_acts(*acts, **settings):
    """(context, acts): each act class made and told of torch, in order of application."""
    context = make_context(*(act.name for act in acts))
    made = []
    for act in acts:
        one = act(settings.get(act.name, {}), context)
        context.acts[act.name] = one
        one.on_torch(torch)
        made.append(one)
    return context, made


def wrapped(acts, module, call=None):
    """The module's call with each act around it, the first outermost."""
    call = call or module._call_impl
    unit = SimpleNamespace(module=module)
    for act in reversed(acts):
        call = act.wrap(unit, call)
    return call
