# SPDX-License-Identifier: MIT
"""Routes from latencies: worked examples, and properties over random curves that are computed here independently."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import xpugraph as xg
from xpugraph.routing import LatencyCurve, Route, check_routes, choose_default, choose_routes

GRID = [1, 2, 4, 8, 16, 24, 32, 40, 48, 56, 64]


def curves(**functions):
    return {
        name: LatencyCurve({n: f(n) for n in GRID}, GRID if name.startswith("graph") else ())
        for name, f in functions.items()
    }


def listed(routes):
    return [(route.first, route.last, route.backend) for route in routes]


def served_by(routes, size):
    (label,) = [route.backend for route in routes if size in route]
    return label


# ---- curves


def test_a_graph_costs_what_its_step_costs_and_others_are_interpolated():
    graph = LatencyCurve({16: 1.0, 24: 3.0}, steps=[16, 24])
    assert [graph(n) for n in (1, 16, 17, 23, 24)] == [1.0, 1.0, 3.0, 3.0, 3.0]
    eager = LatencyCurve({16: 1.0, 24: 3.0})
    assert [eager(n) for n in (1, 16, 18, 20, 24)] == [1.0, 1.0, 1.5, 2.0, 3.0]
    assert eager(48) == 6.0, "above the largest the throughput stays"


def test_above_its_largest_size_a_graph_costs_its_chunks():
    graph = LatencyCurve({8: 1.0, 16: 1.5}, steps=[8, 16])
    assert graph(32) == 3.0
    assert graph(33) == 4.0
    assert graph(45) == 2 * 1.5 + 1.5


def test_what_was_measured_counts_before_what_is_derived():
    assert LatencyCurve({16: 1.0, 17: 2.0, 24: 3.0}, steps=[16, 24])(17) == 2.0


def test_a_size_of_the_same_step_tells_what_the_step_costs():
    graph = LatencyCurve({1: 1.0, 2: 1.0, 8: 2.0}, steps=[1, 2, 512])
    assert [graph(n) for n in (3, 5, 7, 8)] == [2.0] * 4


def test_places_are_halves_and_quarters():
    from xpugraph.routing import _place

    def depth(position, length):
        """As a search over all fractions."""
        if position in (0, length):
            return 0 if position == 0 else 1
        d = 1
        while not any(round(j * length / 2**d) == position for j in range(2**d + 1)):
            d += 1
        return d + 1

    for length in range(1, 40):
        for position in range(length + 1):
            assert _place([10, 11 + length], 11 + position) == depth(position, length)
    assert _place([1 << 20], 12345) > 1


def test_a_step_that_was_not_measured_lies_between_its_neighbours():
    assert LatencyCurve({8: 1.0, 24: 3.0}, steps=[8, 16, 24])(13) == 2.0


# ---- choice


def test_the_default_has_the_highest_peak_throughput_and_others_need_ten_percent():
    found = curves(eager=lambda n: 1.0 + 0.01 * n, graph=lambda n: 0.10 + 0.030 * n)
    assert choose_default(found) == "eager"
    routes = choose_routes(found, "eager")
    for n in GRID:
        eager, graph = 1.0 + 0.01 * n, 0.10 + 0.030 * n
        assert served_by(routes, n) == ("graph" if graph <= 0.9 * eager else "eager"), n
    assert listed(routes) == [(1, 32, "graph"), (33, None, "eager")]


def test_seventeen_goes_where_it_is_fastest_although_sixteen_and_twenty_four_go_elsewhere():
    found = curves(eager=lambda n: 0.1 * n, graph=lambda n: 0.095 * n)
    routes = choose_routes(found, "graph")
    assert [served_by(routes, n) for n in (16, 17, 24, 25, 32)] == ["graph", "eager", "graph", "eager", "graph"]


def test_ranges_begin_at_simple_places_that_noise_does_not_move():
    """Eager and graph cross between 17 and 24, where both are allowed for a while: the range begins half-way."""
    factors = [1.0, 0.99, 1.01, 0.985, 1.015]
    found = set()
    for a in factors:
        for b in factors:
            eager = LatencyCurve({16: 1.0 * a, 24: 1.6 * a})
            graph = LatencyCurve({16: 1.2 * b, 24: 1.28 * b}, steps=[16, 24])
            found.add(str(choose_routes({"eager": eager, "graph": graph}, "graph")))
    assert len(found) == 1


def test_equal_peaks_go_to_the_first():
    found = curves(eager=lambda n: 0.100 * n, graph=lambda n: 0.099 * n)
    assert choose_default(found) == "eager"
    assert choose_default(dict(reversed(found.items()))) == "graph"


def test_latency_objective_and_budget():
    found = curves(eager=lambda n: 1.0 + 0.010 * n, graph=lambda n: 0.5 + 0.030 * n)
    assert choose_default(found) == "eager"
    assert choose_default(found, "latency") == "graph"
    assert choose_default(found, "throughput", latency_budget=1.2) == "graph"  # 16 in 0.98 ms against 16 in 1.16 ms
    with pytest.raises(xg.ConfigError, match=r"latency_budget_ms=0.3.*graph 0.53"):
        choose_default(found, latency_budget=0.3)


def test_of_two_that_are_faster_the_range_before_goes_on():
    tick = {1: 0.50, 2: 0.51, 4: 0.50, 8: 0.51}
    tock = {1: 0.51, 2: 0.50, 4: 0.51, 8: 0.50}
    found = {"eager": LatencyCurve(dict.fromkeys(tick, 1.0)), "a": LatencyCurve(tick), "b": LatencyCurve(tock)}
    assert len(choose_routes(found, "eager")) == 1
    assert [label for _, _, label in listed(choose_routes(found, "eager", min_gain=0))][:2] == ["a", "b"]


# ---- properties

latency = st.floats(0.01, 10, allow_nan=False)
tables = st.lists(latency, min_size=len(GRID), max_size=len(GRID))


def truth(kind, table, n):
    """Latency at `n`, computed without LatencyCurve."""
    if kind == "step":
        return next(t for g, t in zip(GRID, table, strict=True) if g >= n)
    if n in GRID:
        return table[GRID.index(n)]
    above = next(i for i, g in enumerate(GRID) if g > n)
    share = (n - GRID[above - 1]) / (GRID[above] - GRID[above - 1])
    return table[above - 1] + share * (table[above] - table[above - 1])


@settings(max_examples=300, deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from(["step", "line"]), tables), min_size=1, max_size=4),
    st.sampled_from([0.0, 0.05, 0.10, 0.5]),
    st.data(),
)
def test_routed_latency_is_within_the_gain_of_the_best_everywhere(backends, min_gain, data):
    names = [f"{kind}{i}" for i, (kind, _) in enumerate(backends)]
    found = {
        name: LatencyCurve(dict(zip(GRID, table, strict=True)), GRID if kind == "step" else ())
        for name, (kind, table) in zip(names, backends, strict=True)
    }
    default = data.draw(st.sampled_from(names))
    routes = choose_routes(found, default, min_gain)
    check_routes(routes, names)
    assert routes[0].first == 1 and routes[-1].last is None
    assert all(a.last + 1 == b.first and a.backend != b.backend for a, b in zip(routes, routes[1:], strict=False))
    for n in range(1, 65):
        true = {name: truth(kind, table, n) for name, (kind, table) in zip(names, backends, strict=True)}
        best, routed = min(true.values()), true[served_by(routes, n)]
        assert routed <= best / (1 - min_gain) * (1 + 1e-9)
        if n not in GRID:
            continue
        if served_by(routes, n) != default:
            assert routed <= (1 - min_gain) * true[default] * (1 + 1e-9), "another needs the gain to take a size"
        elif best < (1 - min_gain) * true[default] * (1 - 1e-9):
            pytest.fail("the default keeps a size where another has the gain")
    assert served_by(routes, 10**6) == served_by(routes, 64)


# ---- routes that come from outside


@pytest.mark.parametrize(
    "routes",
    [
        [],
        [Route(2, None, "a")],
        [Route(1, 4, "a")],
        [Route(1, 4, "a"), Route(6, None, "a")],
        [Route(1, 4, "a"), Route(4, None, "a")],
        [Route(1, 0, "a"), Route(1, None, "a")],
        [Route(1, None, "a"), Route(5, None, "a")],
        [Route(1, 4, "a"), Route(5, None, "c")],
        [Route("1", 2, "a"), Route(3, None, "a")],
        [Route(True, 2.0, "a"), Route(3, None, "a")],
        [Route(1, 10**12, "a"), Route(10**12 + 1, None, "a")],
    ],
)
def test_routes_with_gaps_overlaps_or_strangers_are_refused(routes):
    with pytest.raises(xg.ConfigError, match="routes"):
        check_routes(routes, ["a", "b"])
    with pytest.raises(xg.ConfigError):
        xg.BatchSizeRouterBackend(routes, {"a": xg.TorchEagerBackend()})


def test_a_backend_without_a_route_is_refused():
    with pytest.raises(xg.ConfigError, match="no route leads to 'b'"):
        xg.BatchSizeRouterBackend([Route(1, None, "a")], {"a": xg.TorchEagerBackend(), "b": xg.TorchEagerBackend()})


def test_a_backend_that_does_not_tell_its_cover_is_covered_by_the_plain_rule():
    plain = LatencyCurve({1: 1.0, 8: 2.0, 16: 4.0}, (1, 8, 16))
    silent = LatencyCurve({1: 1.0, 8: 2.0, 16: 4.0}, (1, 8, 16), lambda size: [])
    split = LatencyCurve({1: 1.0, 8: 2.0, 16: 4.0}, (1, 8, 16), lambda size: [8, 1] if size == 9 else [])
    assert [silent(size) for size in range(1, 50)] == [plain(size) for size in range(1, 50)]
    assert plain(9) == 4.0
    assert split(9) == 3.0
