"""The networks against formulas of other libraries."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import distributions, nn

from worldmodels.models.controller import Controllers, ControllerSpec
from worldmodels.models.elbo import kl_to_prior
from worldmodels.models.encoder import Posterior, to_frames, to_input
from worldmodels.models.heads import Mixture
from worldmodels.models.vae import ConvVAE


def frames(count: int, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, 256, (count, 64, 64, 3), dtype=torch.uint8, generator=generator)


def test_frames_survive_the_way_to_the_network_and_back() -> None:
    original = frames(2)
    assert torch.equal(to_frames(to_input(original)), original)


def test_vae_has_the_papers_parameter_count() -> None:
    assert sum(p.numel() for p in ConvVAE(32).parameters()) == 4_348_547


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_for_inference_is_the_same_function_of_fewer_numbers(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    model = ConvVAE(16).eval().to(dtype)
    folded = model.for_inference()
    images = to_input(frames(2)).to(dtype)
    assert torch.equal(folded.encode(images).mean, model.encode(images).mean)
    latents = torch.randn(4, 16).to(dtype)
    atol = 1e-6 if dtype == torch.float32 else 1e-2
    torch.testing.assert_close(folded.decode(latents), model.decode(latents), rtol=0, atol=atol)
    count, fewer = (sum(p.numel() for p in vae.parameters()) for vae in (model, folded))
    assert count - fewer == 1024 * (16 + 1) + 3200 * 1024 - 3200 * (16 + 1)
    assert folded.for_inference() is folded


def test_the_decoder_is_the_papers_four_transposed_convolutions() -> None:
    torch.manual_seed(0)
    model = ConvVAE(8).double()
    for name, parameter in model.named_parameters():
        if name.endswith("bias"):
            nn.init.normal_(parameter)
    plain = nn.Sequential(
        nn.Linear(8, 1024),
        nn.Unflatten(1, (1024, 1, 1)),
        *(nn.ConvTranspose2d(1024, 128, 5, stride=2), nn.ReLU()),
        *(nn.ConvTranspose2d(128, 64, 5, stride=2), nn.ReLU()),
        *(nn.ConvTranspose2d(64, 32, 6, stride=2), nn.ReLU()),
        *(nn.ConvTranspose2d(32, 3, 6, stride=2), nn.Sigmoid()),
    ).double()
    convolutions = list(model.decoder.parameters())
    first = model.first_map.weight.view(5, 5, 128, 1024).permute(3, 2, 0, 1)
    weights = [*model.expand.parameters(), first, model.first_bias, *convolutions]
    with torch.no_grad():
        for theirs, value in zip(plain.parameters(), weights, strict=True):
            theirs.copy_(value)
    latents = torch.randn(3, 8, dtype=torch.float64)
    images, expected = model.decode(latents), plain(latents)
    torch.testing.assert_close(images, expected)
    images.square().sum().backward()
    expected.square().sum().backward()
    for theirs, value in zip(list(plain.parameters())[4:], convolutions, strict=True):
        torch.testing.assert_close(value.grad, theirs.grad)


def test_kl_agrees_with_torch_distributions() -> None:
    mean, logvar = torch.randn(5, 7), torch.randn(5, 7)
    ours = kl_to_prior(Posterior(mean, logvar))
    normal = distributions.Normal(mean, torch.exp(0.5 * logvar))
    theirs = distributions.kl_divergence(normal, distributions.Normal(0.0, 1.0))
    torch.testing.assert_close(ours, theirs)


def test_free_nats_hold_for_the_sum_over_dimensions() -> None:
    torch.manual_seed(0)
    small = ConvVAE(8, kl_tolerance=0.5)
    with torch.no_grad():
        small.posterior.weight.zero_()
        small.posterior.bias.zero_()  # the posterior is the prior: KL 0, cost 0.5 * 8 all the same
    loss, logs = small.loss(frames(3))
    assert logs["kl"].item() == pytest.approx(0.0, abs=1e-6)
    assert (loss - logs["reconstruction"]).item() == pytest.approx(4.0, rel=1e-4)


@settings(max_examples=25, deadline=None)
@given(st.integers(1, 6), st.integers(1, 5), st.floats(-6, 6), st.booleans(), st.integers(0, 2**31))
def test_mixture_density_agrees_with_torch_distributions(
    latent: int, mixtures: int, scale: float, shared: bool, seed: int
) -> None:
    generator = torch.Generator().manual_seed(seed)
    shape = (3, latent, mixtures)
    logits, mean, log_std = (torch.randn(shape, generator=generator) for _ in range(3))
    mean = mean * scale
    value = torch.randn(3, latent, generator=generator) * 3
    if shared:
        ours = Mixture(logits[:, :1], mean, log_std).log_prob(value)
        together = distributions.Independent(distributions.Normal(mean.mT, log_std.mT.exp()), 1)
        vectors = distributions.Categorical(logits=logits[:, 0])
        theirs = distributions.MixtureSameFamily(vectors, together).log_prob(value)
    else:
        ours = Mixture(logits, mean, log_std).log_prob(value)
        each = distributions.Normal(mean, log_std.exp())
        numbers = distributions.Categorical(logits=logits)
        theirs = distributions.MixtureSameFamily(numbers, each).log_prob(value).sum(dim=-1)
    torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("temperature", [0.3, 1.0, 1.5])
def test_samples_follow_the_tempered_mixture(temperature: float) -> None:
    logits = torch.tensor([0.5, -0.3, 1.0])
    mean = torch.tensor([-2.0, 0.5, 3.0])
    log_std = torch.tensor([-1.0, 0.2, -0.5])
    count = 200_000
    torch.manual_seed(0)
    mixture = Mixture(*(part.expand(count, 1, 3) for part in (logits, mean, log_std)))
    drawn = mixture.sample(torch.rand(count, 1), torch.randn(count, 1), temperature)
    tempered = distributions.MixtureSameFamily(
        distributions.Categorical(logits=logits / temperature),
        distributions.Normal(mean, log_std.exp() * temperature**0.5),
    )
    assert drawn.mean().item() == pytest.approx(tempered.mean.item(), abs=0.03)
    assert drawn.var().item() == pytest.approx(tempered.variance.item(), rel=0.03)


def test_a_shared_mixture_draws_one_component_for_all_dimensions() -> None:
    mean = torch.tensor([[-1.0, 1.0], [-3.0, 3.0], [5.0, -5.0]])  # (latent, mixtures)
    logits = torch.tensor([[0.0, 1.0]])
    count = 200_000
    torch.manual_seed(0)
    mixture = Mixture(
        logits.expand(count, 1, 2), mean.expand(count, 3, 2), torch.full((count, 3, 2), -4.0)
    )
    drawn = mixture.sample(torch.rand(count, 3), torch.randn(count, 3), 1.0)
    second = drawn[:, 0] > 0
    assert second.float().mean().item() == pytest.approx(
        torch.sigmoid(logits.sum()).item(), abs=0.005
    )
    torch.testing.assert_close(
        drawn[second], mean[:, 1].expand(int(second.sum()), 3), atol=0.15, rtol=0
    )
    torch.testing.assert_close(
        drawn[~second], mean[:, 0].expand(int((~second).sum()), 3), atol=0.15, rtol=0
    )
    torch.testing.assert_close(mixture.mode()[0], mean[:, 1])


@pytest.mark.parametrize("frames", [1, 5])
def test_the_encoder_infers_in_bfloat16_what_its_convolutions_say(frames: int) -> None:
    torch.manual_seed(0)
    vision = ConvVAE().bfloat16()
    images = torch.rand(frames, 3, 64, 64).bfloat16()
    trained = vision.encode(images)  # with gradients, by convolutions
    with torch.inference_mode():
        inferred = vision.encode(images)
    for one, other in zip(trained, inferred, strict=True):
        torch.testing.assert_close(one, other, rtol=0.02, atol=0.02)


def test_controllers_act_as_one_linear_layer_each_and_stay_in_the_box() -> None:
    torch.manual_seed(0)
    head = ControllerSpec(("tanh", "half_tanh", "clipped_tanh"))
    assert head.size(288) == 867  # the paper's number
    parameters = torch.randn(6, head.size(4))
    features = torch.randn(6, 4)
    actions = Controllers(parameters, 4, head).act(features)
    for index in range(6):
        weight = parameters[index, :12].reshape(4, 3)
        raw = features[index] @ weight + parameters[index, 12:]
        wanted = [torch.tanh(raw[0]), torch.tanh(raw[1]) / 2 + 0.5, torch.tanh(raw[2]).clamp(0)]
        torch.testing.assert_close(actions[index], torch.stack(wanted), rtol=1e-4, atol=1e-5)
    low, high = torch.tensor([-1.0, 0, 0]), torch.tensor([1.0, 1, 1])
    assert ((actions >= low) & (actions <= high)).all()


def test_controllers_with_a_hidden_layer_act_as_torchs_own() -> None:
    torch.manual_seed(0)
    head = ControllerSpec(("tanh", "tanh", "tanh"), hidden_units=40)
    assert head.size(32) == 1443  # the paper's number
    layers = [nn.Linear(32, 40), nn.Linear(40, 3)]
    parameters = torch.cat(
        [part.detach().t().flatten() for layer in layers for part in (layer.weight, layer.bias)]
    )
    features = torch.randn(5, 32)
    controllers = Controllers(parameters.repeat(5, 1), 32, head)
    controllers.keep(torch.tensor([True, False, True, True, False]))
    kept = features[[0, 2, 3]]
    wanted = torch.tanh(layers[1](torch.tanh(layers[0](kept))))
    torch.testing.assert_close(controllers.act(kept), wanted)


def test_a_controller_of_the_wrong_size_is_refused() -> None:
    with pytest.raises(ValueError, match="has 15 parameters, not 14"):
        Controllers(torch.zeros(1, 14), 4, ControllerSpec(("tanh",) * 3))
