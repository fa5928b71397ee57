"""Several networks in one run: the settings of each, laid over those of the run."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from faverage.experiment.given import Layers, check_names, scaled
from faverage.experiment.settings import FLOATS, ConfigError, as_float, check_settings

if TYPE_CHECKING:
    from faverage.experiment.config import RunConfig

__all__ = ["SETTINGS", "check_networks", "each_network", "networks_of", "settled"]

SETTINGS = (
    *("backbone", "weights", "epochs", "batch_size", "lr", "schedule", "weight_decay"),
    *("flip", "crop", "jitter", "turned", "mix", "smoothing", "start", "views"),
)
"""What a network may have of its own."""

Network = dict[str, Any]


def networks_of(layers: Layers, lr: Any, batch_size: Any) -> tuple[Network, ...]:
    """Return the settings of each network; none where no layer has networks.

    What a layer above that of the networks says, such as the command line above a file, counts for all of them. A
    number of views does not: it says how many of their views to take.

    Args:
        layers: settings, each laid over those before.
        lr: of the run; a network that has a batch size of its own and no learning rate scales it.
        batch_size: of the run.
    """
    place = max((i for i, layer in enumerate(layers) if "networks" in layer), default=-1)
    given = layers[place]["networks"] if place >= 0 else ()
    if not isinstance(given, list | tuple) or not all(isinstance(network, dict) for network in given):
        raise ConfigError(f"networks must be a list of settings, as [{{}}, {{start: 1}}], got {given!r}")
    above = {key: value for layer in layers[place + 1 :] for key, value in layer.items()}
    if isinstance(above.get("views"), int):
        del above["views"]
    found = []
    for number, network in enumerate(given, 1):
        for key in network:
            if key not in SETTINGS:
                raise ConfigError(
                    f"networks: {number}: '{key}' is not for one network; these are: {', '.join(SETTINGS)}"
                )
        own = {key: as_float(v) if key in FLOATS else v for key, v in network.items() if key not in above}
        try:
            check_names(own.get("views", ()))
        except ConfigError as error:
            raise ConfigError(f"networks: {number}: {error}") from None
        if "batch_size" in own and "lr" not in own:
            own["lr"] = scaled(lr, batch_size, own["batch_size"])
        found.append(own)
    return tuple(found)


def each_network(config: RunConfig) -> tuple[RunConfig, ...]:
    """Return the settings of each network, as of a run with that one alone."""
    if not config.networks:
        return (config,)
    boards: list[str | None] = [None] * len(config.networks)
    if config.tensorboard is not None:
        boards = [str(Path(config.tensorboard) / f"network-{k}") for k in range(1, len(boards) + 1)]
    pairs = zip(config.networks, boards, strict=True)
    return tuple(replace(_alone(config, network), tensorboard=board) for network, board in pairs)


def check_networks(config: RunConfig) -> None:
    """Raise ConfigError where a setting of a network cannot be."""
    for number, one in enumerate(each_network(config) if config.networks else (), 1):
        try:
            check_settings(one)
        except ConfigError as error:
            raise ConfigError(f"networks: {number}: {error}") from None


def settled(config: RunConfig, count: int | None) -> RunConfig:
    """Return checked settings as the run has them.

    Networks that would be trained alike, and have no ``start`` of their own, start by their places. Of all views the
    first ``count`` are taken, and networks that have none of them are left out. A network that is alone then is the
    run's own.
    """
    ones = each_network(config)
    networks = _started(config, ones)
    views = [list(one.views) for one in ones]
    if count is not None:
        total = sum(map(len, views))
        if not 1 <= count <= total:
            raise ConfigError(f"views must be a number from 1 to {total}, the views of the settings, got {count}")
        ends = [sum(map(len, views[:k])) for k in range(len(views))]
        views = [names[: count - end] for names, end in zip(views, ends, strict=True) if end < count]
    if not networks:
        return replace(config, views=tuple(views[0]))
    pairs = list(zip(networks, views, strict=False))
    if len(pairs) == 1:
        return _alone(config, {**pairs[0][0], "views": pairs[0][1]})
    usual = list(config.views)
    own = [net if names == net.get("views", usual) else {**net, "views": names} for net, names in pairs]
    return replace(config, networks=tuple(own))


def _started(config: RunConfig, ones: tuple[RunConfig, ...]) -> list[Network]:
    keys = [one.base_key() for one in ones]
    free = [keys[k] for k, network in enumerate(config.networks) if "start" not in network]
    networks = []
    for k, network in enumerate(config.networks):
        alike = "start" not in network and free.count(keys[k]) > 1
        networks.append({**network, "start": config.start + k} if alike else network)
        keys[k] = {**keys[k], "start": networks[k].get("start", config.start)}
        if keys[k] in keys[:k]:
            first = keys.index(keys[k]) + 1
            raise ConfigError(f"networks: {k + 1}: it is network {first} once more: give it another start")
    return networks


def _alone(config: RunConfig, network: Network) -> RunConfig:
    """Return the settings of a run with this network alone."""
    views = network.get("views", config.views)
    return replace(config, **{**network, "views": tuple(views), "networks": ()})
