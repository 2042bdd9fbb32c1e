"""Reading nn.RNN, nn.LSTM and nn.GRU, which use their weights without calling any layer.

While they are watched, their forward pass is written out step by step with the same weights: each weight is then that
of a linear layer, whose positions are the steps. The result is compared with the layer's own; where they differ its own
is used, nothing is recorded, and the check of all rows sends its parameters to the per-sample fallback.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence

from orthocl.tangents.attention import Use, same

Recurrent = nn.RNN | nn.LSTM | nn.GRU
Note = Callable[[Use], None]
# A cell: what the input and the previous state give to each gate, and the previous states -> the new states.
Cell = Callable[[Tensor, Tensor, Sequence[Tensor]], tuple[Tensor, ...]]


def readable_recurrent(module: nn.Module) -> bool:
    """Whether the weights of a recurrent layer can be watched."""
    return type(module) in (nn.RNN, nn.LSTM, nn.GRU) and not getattr(module, "proj_size", 0)


def watch_steps(module: Recurrent, note: Note, *, compared: bool = True) -> Callable[[], None]:
    """Report every use of the layer's weights to `note`; returns a function that stops it.

    Args:
        module: the layer, in eval mode (there is no dropout between its layers then).
        note: told which inputs met which weights.
        compared: whether the result is compared with the layer's own.
    """
    own = module.forward

    def forward(x: Tensor | PackedSequence, hx: Any = None) -> Any:
        data = x.data if isinstance(x, PackedSequence) else x
        if isinstance(x, Tensor) and x.dim() != 3:
            return own(x, hx)
        uses: list[Use] = []
        found = _written_out(module, x, hx, uses.append)
        if compared and not data.is_meta:
            with torch.no_grad():
                expected = own(x, hx)
            if not same(_values(found[0]), _values(expected[0])):
                return own(x, hx)
        for use in uses:
            note(use)
        return found

    module.__dict__["forward"] = forward

    def end() -> None:
        del module.__dict__["forward"]

    return end


def _values(output: Tensor | PackedSequence) -> Tensor:
    return output.data if isinstance(output, PackedSequence) else output


def _written_out(module: Recurrent, given: Tensor | PackedSequence, hx: Any, note: Note) -> Any:
    """The forward pass by its definition: outputs and last states, as the layer returns them."""
    if isinstance(given, PackedSequence):
        x, lengths = pad_packed_sequence(given, batch_first=True)
        running = torch.arange(x.shape[1])[:, None, None] < lengths[:, None]
        steps: Sequence[Tensor | None] = list(running.to(x.device))
    else:
        x = given if module.batch_first else given.transpose(0, 1)
        steps = [None] * x.shape[1]
    directions = 1 + module.bidirectional
    starts = _starts(module, x, hx)
    ends = []
    for layer in range(module.num_layers):
        sides = []
        for side in range(directions):
            place = layer * directions + side
            states, last = _one_direction(
                module, f"l{layer}{'_reverse' * side}", x, [part[place] for part in starts], steps, note
            )
            sides.append(states)
            ends.append(last)
        x = torch.cat(sides, -1) if directions > 1 else sides[0]
    last_states = tuple(torch.stack(parts) for parts in zip(*ends, strict=True))
    return _as_given(module, x, given), last_states if isinstance(module, nn.LSTM) else last_states[0]


def _starts(module: Recurrent, x: Tensor, hx: Any) -> tuple[Tensor, ...]:
    """The states before the first step, each (layers x directions, samples, units)."""
    if hx is not None:
        return tuple(hx) if isinstance(module, nn.LSTM) else (hx,)
    rows = module.num_layers * (1 + module.bidirectional)
    return (x.new_zeros(rows, len(x), module.hidden_size),) * (1 + isinstance(module, nn.LSTM))


def _as_given(module: Recurrent, outputs: Tensor, given: Tensor | PackedSequence) -> Tensor | PackedSequence:
    if not isinstance(given, PackedSequence):
        return outputs if module.batch_first else outputs.transpose(0, 1)
    order = given.sorted_indices
    lengths = pad_packed_sequence(given, batch_first=True)[1]
    ordered = outputs if order is None else outputs[order]
    packed = pack_padded_sequence(
        ordered, lengths if order is None else lengths[order.cpu()], batch_first=True
    )
    return PackedSequence(packed.data, packed.batch_sizes, given.sorted_indices, given.unsorted_indices)


def _one_direction(
    module: Recurrent,
    suffix: str,
    x: Tensor,
    states: Sequence[Tensor],
    running: Sequence[Tensor | None],
    note: Note,
) -> tuple[Tensor, tuple[Tensor, ...]]:
    """The states of all steps, (samples, steps, units), and the last ones; `running` samples have not ended yet."""
    names = [(f"weight_{kind}_{suffix}", f"bias_{kind}_{suffix}") for kind in ("ih", "hh")]
    (weight, bias), (inner, inner_bias) = (
        (getattr(module, first), getattr(module, second) if module.bias else None) for first, second in names
    )
    z = functional.linear(x, weight, bias)
    # All that a gate is given is one sum, so its parts have one derivative, except where one of them is gated itself.
    inner_z = z
    shifts: Sequence[Tensor | None] = [None] * x.shape[1]
    if isinstance(module, nn.GRU):
        inner_z = torch.zeros_like(z).requires_grad_(z.requires_grad)
        shifts = inner_z.unbind(1)
    cell, before = _cell(module), []
    outputs: list[Tensor] = []
    current, parts = tuple(states), z.unbind(1)
    backwards = suffix.endswith("_reverse")
    for step in reversed(range(len(parts))) if backwards else range(len(parts)):
        before.append(current[0])
        recurrent, shift, still = (
            functional.linear(current[0], inner, inner_bias),
            shifts[step],
            running[step],
        )
        new = cell(parts[step], recurrent if shift is None else recurrent + shift, current)
        current = (
            new
            if still is None
            else tuple(torch.where(still, a, b) for a, b in zip(new, current, strict=True))
        )
        outputs.append(current[0])
    if backwards:
        before, outputs = before[::-1], outputs[::-1]
    note(Use(x, z, parts=names[0]))
    note(Use(torch.stack(before, 1), inner_z, parts=names[1]))
    return torch.stack(outputs, 1), current


def _cell(module: Recurrent) -> Cell:
    if isinstance(module, nn.LSTM):
        return _lstm
    if isinstance(module, nn.GRU):
        return _gru
    activation = torch.tanh if module.nonlinearity == "tanh" else torch.relu
    return lambda z, inner, states: (activation(z + inner),)


def _lstm(z: Tensor, inner: Tensor, states: Sequence[Tensor]) -> tuple[Tensor, ...]:
    enters, forgets, new, leaves = (z + inner).chunk(4, 1)
    kept = forgets.sigmoid() * states[1] + enters.sigmoid() * new.tanh()
    return leaves.sigmoid() * kept.tanh(), kept


def _gru(z: Tensor, inner: Tensor, states: Sequence[Tensor]) -> tuple[Tensor, ...]:
    resets, updates, new = z.chunk(3, 1)
    inner_resets, inner_updates, inner_new = inner.chunk(3, 1)
    candidate = (new + (resets + inner_resets).sigmoid() * inner_new).tanh()
    return (torch.lerp(candidate, states[0], (updates + inner_updates).sigmoid()),)
