"""Statistics of a data set, for a table."""

from __future__ import annotations

from worldmodels.data.episodes import EpisodeSet


def describe(episodes: EpisodeSet) -> list[tuple[str, str]]:
    """Name and formatted value of each statistic; reads rewards and ends of all shards.

    Raises:
        DataError: a shard is damaged.
    """
    returns = episodes.returns()
    lengths = episodes.lengths
    on_disk = sum(shard.path.stat().st_size for shard in episodes.shards)
    frames = sum(shard.frame_bytes for shard in episodes.shards)
    ends = [shard.count_ends() for shard in episodes.shards]
    terminated, truncated = (sum(counts) for counts in zip(*ends, strict=True))
    attrs, branches = episodes.shards[0].attrs, int(episodes.branches.sum())
    return [
        ("environment", f"{attrs.get('env', '?')} ({attrs.get('engine', '?')})"),
        ("policy", str(attrs.get("policy", "?"))),
        ("episodes", f"{episodes.num_episodes:,} in {len(episodes.shards)} shards"),
        *[("branches of failures", f"{branches:,}")] * (branches > 0),
        ("frames", f"{episodes.num_frames:,}"),
        ("steps", f"{int(lengths.sum()):,}"),
        ("episode length", f"{lengths.mean():.1f} ({lengths.min()} to {lengths.max()})"),
        ("return", f"{returns.mean():.1f} ({returns.min():.1f} to {returns.max():.1f})"),
        ("ended", f"{terminated} terminated, {truncated} truncated"),
        ("size on disk", f"{on_disk / 2**20:.1f} MiB"),
        ("compression", f"{frames / on_disk:.2f} to 1 ({attrs.get('codec', '?')})"),
        ("fingerprint", episodes.fingerprint),
        *[("left out (damaged)", str(path)) for path in episodes.skipped],
    ]
