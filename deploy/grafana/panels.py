# SPDX-License-Identifier: Apache-2.0
"""Kinds of panels, and the PromQL they are made of. What is on the dashboard is in dashboard.py."""

from __future__ import annotations

from string import ascii_uppercase

from grafana_foundation_sdk.builders import common, heatmap, prometheus, stat, table, timeseries
from grafana_foundation_sdk.models.common import (
    GraphDrawStyle,
    GraphGradientMode,
    LegendDisplayMode,
    LegendPlacement,
    ScaleDistribution,
    SortOrder,
    TooltipDisplayMode,
    VisibilityMode,
)
from grafana_foundation_sdk.models.dashboard import DataSourceRef, DataTransformerConfig, DynamicConfigValue
from grafana_foundation_sdk.models.heatmap import HeatmapColorMode
from grafana_foundation_sdk.models.prometheus import PromQueryFormat

from fused_mlp.service.reports.style import VARIANT_COLOURS

SOURCE = DataSourceRef(type_val="prometheus", uid="${datasource}")
COLOURS = {variant: VARIANT_COLOURS[variant].any for variant in ("fused", "unfused")}
HALF, THIRD, QUARTER, SIXTH = 12, 8, 6, 4


def select(metric: str, **labels: str) -> str:
    """A metric of the chosen jobs and model."""
    wanted = ['job=~"$job"', 'model="$model"', *(f'{name}="{value}"' for name, value in labels.items())]
    return f"{metric}{{{','.join(wanted)}}}"


def own_or_default(aggregate: str, metric: str) -> str:
    """Of the chosen model, or what the server tells of all models that have no series of their own."""
    return f'{aggregate} ({select(metric)}) or {aggregate} ({metric}{{job=~"$job",model=""}})'


def rate(metric: str, by: str = "", **labels: str) -> str:
    grouped = f"sum by ({by})" if by else "sum"
    return f"{grouped} (rate({select(metric, **labels)}[$__rate_interval]))"


def quantile(share: float, metric: str, by: str = "", **labels: str) -> str:
    return f"histogram_quantile({share}, {rate(f'{metric}_bucket', f'{by}, le' if by else 'le', **labels)})"


def mean(metric: str, by: str) -> str:
    return f"{rate(f'{metric}_sum', by)} / {rate(f'{metric}_count', by)}"


def query(expr: str, legend: str) -> prometheus.Dataquery:
    return prometheus.Dataquery().ref_id("A").expr(expr).legend_format(legend)


def lines(
    title: str, text: str, unit: str, *queries: prometheus.Dataquery, span: int = HALF, from_zero: bool = True
) -> timeseries.Panel:
    """Over time. A series is coloured, and dashed, by the variant that its legend names."""
    panel = (
        timeseries.Panel()
        .title(title)
        .description(text)
        .datasource(SOURCE)
        .unit(unit)
        .span(span)
        .height(8)
        .line_width(2)
        .fill_opacity(6)
        .gradient_mode(GraphGradientMode.OPACITY)
        .show_points(VisibilityMode.NEVER)
        .draw_style(GraphDrawStyle.LINE)
        .legend(
            common.VizLegendOptions()
            .display_mode(LegendDisplayMode.LIST)
            .placement(LegendPlacement.BOTTOM)
            .show_legend(True)
        )
        .tooltip(common.VizTooltipOptions().mode(TooltipDisplayMode.MULTI).sort(SortOrder.DESCENDING))
    )
    if from_zero:
        panel.min(0)
    for letter, made in zip(ascii_uppercase, queries, strict=False):
        panel.with_target(made.ref_id(letter))
    for variant, colour in COLOURS.items():
        looks = {"color": {"mode": "fixed", "fixedColor": colour}}
        if variant == "unfused":
            looks["custom.lineStyle"] = {"fill": "dash", "dash": [8, 4]}
        override(panel, rf"/\b{variant}\b/", **looks)
    return panel


def logarithmic(panel: timeseries.Panel) -> timeseries.Panel:
    return panel.scale_distribution(common.ScaleDistributionConfig().type(ScaleDistribution.LOG).log(10))


def override(panel: timeseries.Panel, pattern: str, **properties: object) -> None:
    panel.override_by_regexp(pattern, [DynamicConfigValue(name, value) for name, value in properties.items()])


def number(title: str, text: str, unit: str, expr: str, decimals: int) -> stat.Panel:
    return (
        stat.Panel()
        .title(title)
        .description(text)
        .datasource(SOURCE)
        .unit(unit)
        .decimals(decimals)
        .span(QUARTER)
        .height(4)
        .no_value("no traffic")
        .with_target(query(expr, title))
    )


def heat(title: str, text: str, histogram: str, variant: str) -> heatmap.Panel:
    """A histogram over time, bucket by bucket."""
    expr = f"sum by (le) (increase({select(f'{histogram}_bucket', variant=variant)}[$__rate_interval]))"
    return (
        heatmap.Panel()
        .title(title)
        .description(text)
        .datasource(SOURCE)
        .span(HALF)
        .height(8)
        .calculate(False)
        .color(
            heatmap.HeatmapColorOptions()
            .mode(HeatmapColorMode.SCHEME)
            .scheme("Blues" if variant == "fused" else "Oranges")
            .steps(32)
        )
        .with_target(query(expr, "{{le}}").format(PromQueryFormat.HEATMAP))
    )


def facts(title: str, text: str, info_metric: str, hidden: tuple[str, ...], span: int) -> table.Panel:
    """The labels of an info metric, which is 1 for everything there is."""
    excluded = dict.fromkeys(("Time", "Value", "__name__", *hidden), True)
    return (
        table.Panel()
        .title(title)
        .description(text)
        .datasource(SOURCE)
        .span(span)
        .height(7)
        .with_target(query(info_metric, "").instant().format(PromQueryFormat.TABLE))
        .with_transformation(DataTransformerConfig("organize", {"excludeByName": excluded}))
    )
