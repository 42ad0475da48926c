"""Losses of PyTorchTS' training networks, one per window.

Each network ends in a mean over all windows and steps; here the same terms are averaged
per window. The mean of these losses is the library's loss unless values are missing:
DeepAR, Causal DeepAR and TFT then weight each window by its number of observed steps,
whereas here all windows have equal weight.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 (torch's own name for it)
from pts.model import weighted_average
from pts.model.causal_deepar.causal_deepar_network import CausalDeepARTrainingNetwork
from pts.model.deepar.deepar_network import DeepARTrainingNetwork
from pts.model.deepvar.deepvar_network import DeepVARTrainingNetwork
from pts.model.lstnet.lstnet_network import LSTNetBase, LSTNetTrain
from pts.model.n_beats.n_beats_network import NBEATSNetwork, NBEATSTrainingNetwork
from pts.model.simple_feedforward import SimpleFeedForwardTrainingNetwork
from pts.model.tempflow.tempflow_network import TempFlowTrainingNetwork
from pts.model.tft.tft_network import (
    TemporalFusionTransformerNetwork,
    TemporalFusionTransformerTrainingNetwork,
)
from pts.model.time_grad.time_grad_network import TimeGradTrainingNetwork
from pts.model.transformer.transformer_network import TransformerTrainingNetwork
from pts.model.transformer_tempflow.transformer_tempflow_network import (
    TransformerTempFlowTrainingNetwork,
)
from torch import Tensor, nn

from pts_scott.backends.point_network import context_scale

WindowLoss = Callable[[Any, dict[str, Tensor]], Tensor]


def _deepar(net: Any, batch: dict[str, Tensor]) -> Tensor:
    _, losses = net(**batch)
    past = batch["past_observed_values"][:, net.history_length - net.context_length :]
    observed = torch.cat((past, batch["future_observed_values"]), dim=1)
    if observed.ndim == 3:
        observed = observed.min(dim=-1).values
    return weighted_average(losses, weights=observed, dim=1)


def _multivariate(net: Any, batch: dict[str, Tensor]) -> Tensor:
    """Return the losses of DeepVAR and TempFlow, which return one likelihood per step."""
    likelihoods = net(**batch)[1]
    return weighted_average(
        likelihoods, weights=_observed_steps(net, batch), dim=1
    ).squeeze(-1)


def _observed_steps(net: Any, batch: dict[str, Tensor]) -> Tensor:
    """Return the mask of steps at which no dimension is missing."""
    past = torch.min(batch["past_observed_values"], 1 - batch["past_is_pad"][..., None])
    past, future = past[:, -net.context_length :], batch["future_observed_values"]
    return torch.cat((past, future), dim=1).min(dim=-1, keepdim=True).values


def _feedforward(net: Any, batch: dict[str, Tensor]) -> Tensor:
    past = batch["past_target"]
    # Its get_distr, except that a context of zeros has scale 1, not that of the batch.
    scale = context_scale(past, torch.ones_like(past))
    scale = scale if net.mean_scaling else torch.ones_like(scale)
    arguments = net.distr_args_proj(net.mlp(past / scale))
    distribution = net.distr_output.distribution(arguments, scale=scale)
    return -distribution.log_prob(batch["future_target"]).mean(dim=1)


def _lstnet(net: Any, batch: dict[str, Tensor]) -> Tensor:
    past = batch["past_target"], batch["past_observed_values"]
    forecast, scale = LSTNetBase.forward(net, *past)
    future = batch["future_target"]
    future = future[..., -1:] if net.horizon else future
    return (forecast * scale - future).abs().flatten(1).mean(dim=1)


def _nbeats(net: Any, batch: dict[str, Tensor]) -> Tensor:
    past, future = batch["past_target"], batch["future_target"]
    forecast = NBEATSNetwork.forward(net, past)
    if net.loss_function == "MAPE":
        return net.mape_loss(forecast, future)
    if net.loss_function == "sMAPE":
        return net.smape_loss(forecast, future)
    return net.mase_loss(forecast, future, past, net.periodicity)


def _tft(net: Any, batch: dict[str, Tensor]) -> Tensor:
    names = ("future_target", "future_observed_values")
    inputs = {name: values for name, values in batch.items() if name not in names}
    *covariates, offset, scale = net._preprocess(**inputs)
    forecast = TemporalFusionTransformerNetwork.forward(
        net, inputs["past_observed_values"], *covariates
    )
    losses = net.loss(batch["future_target"], net._postprocess(forecast, offset, scale))
    return weighted_average(losses, batch["future_observed_values"], dim=1)


def _time_grad(net: Any, batch: dict[str, Tensor]) -> Tensor:
    encoder = {k: v for k, v in batch.items() if k != "future_observed_values"}
    outputs, _, scale, _, _ = net.unroll_encoder(**encoder)
    past = batch["past_target_cdf"][:, -net.context_length :]
    target = torch.cat((past, batch["future_target_cdf"]), dim=1)
    target = target / scale if net.scaling else target
    diffusion, condition = net.diffusion, net.distr_args(rnn_outputs=outputs)
    size, steps, _ = target.shape
    time = torch.randint(
        0, diffusion.num_timesteps, (size * steps,), device=target.device
    )
    start = target.reshape(size * steps, 1, -1)
    noise = torch.randn_like(start)
    noisy = diffusion.q_sample(x_start=start, t=time, noise=noise)
    found = diffusion.denoise_fn(noisy, time, cond=condition.reshape(size * steps, 1, -1))
    losses = DIFFUSION_LOSSES[diffusion.loss_type](found, noise, reduction="none")
    return losses.reshape(size, -1).mean(dim=1)


def _transformer(net: Any, batch: dict[str, Tensor]) -> Tensor:
    inputs, scale, _ = net.create_network_input(**batch)
    decoded = _decoded(net, inputs)
    arguments = net.proj_dist_args(decoded)
    distribution = net.distr_output.distribution(arguments, scale=scale)
    return -distribution.log_prob(batch["future_target"]).flatten(1).mean(dim=1)


def _transformer_tempflow(net: Any, batch: dict[str, Tensor]) -> Tensor:
    inputs = {k: v for k, v in batch.items() if k != "future_observed_values"}
    inputs, scale, _ = net.create_network_input(**inputs)
    decoded = _decoded(net, inputs)
    if net.scaling:
        net.flow.scale = scale
    target = batch["future_target_cdf"].clone()  # the flow divides it in place
    if net.dequantize:
        target += torch.rand_like(target)
    arguments = net.distr_args(decoder_output=decoded)
    return -net.flow.log_prob(target, arguments).flatten(1).mean(dim=1)


def _decoded(net: Any, inputs: Tensor) -> Tensor:
    """Return the decoder's output for the prediction range, windows first."""
    past, future = inputs[:, : net.context_length], inputs[:, net.context_length :]
    memory = net.transformer.encoder(net.encoder_input(past).permute(1, 0, 2))
    decoded = net.transformer.decoder(
        net.decoder_input(future).permute(1, 0, 2), memory, tgt_mask=net.tgt_mask
    )
    return decoded.permute(1, 0, 2)


DIFFUSION_LOSSES: dict[str, Callable[..., Tensor]] = {
    "l1": F.l1_loss,
    "l2": F.mse_loss,
    "huber": F.smooth_l1_loss,
}

WINDOW_LOSSES: dict[type[nn.Module], WindowLoss] = {
    CausalDeepARTrainingNetwork: _deepar,
    DeepARTrainingNetwork: _deepar,
    DeepVARTrainingNetwork: _multivariate,
    LSTNetTrain: _lstnet,
    NBEATSTrainingNetwork: _nbeats,
    SimpleFeedForwardTrainingNetwork: _feedforward,
    TempFlowTrainingNetwork: _multivariate,
    TemporalFusionTransformerTrainingNetwork: _tft,
    TimeGradTrainingNetwork: _time_grad,
    TransformerTempFlowTrainingNetwork: _transformer_tempflow,
    TransformerTrainingNetwork: _transformer,
}
