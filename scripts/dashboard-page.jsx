// The panels of a dashboard with what a data source answered, drawn by Grafana's own library of panels:
// scripts/dashboard-picture puts this file beside data.json and bundles it.

import { applyFieldOverrides, createTheme, dateTime, FieldType, Registry, ThemeContext } from "@grafana/data";
import { GlobalStyles, PanelChrome, TimeSeries } from "@grafana/ui";
import React from "react";
import { createRoot } from "react-dom/client";
import { answers, dashboard, from, step, to, volume, width } from "./data.json";

// A dashboard has 24 columns. A row is 30 pixels high, with 8 between.
const [COLUMN, ROW, GAP] = [width / 24, 38, 8];
const theme = createTheme({ colors: { mode: "dark" } });
const times = { from: dateTime(from * 1000), to: dateTime(to * 1000) };
const timeRange = { ...times, raw: times };

// What Grafana takes where a dashboard of time series says nothing.
const LEGEND = { displayMode: "list", placement: "bottom", showLegend: true, calcs: [] };
const COLOR = { mode: "palette-classic" };
const LINES = {
  drawStyle: "line",
  lineInterpolation: "linear",
  lineWidth: 1,
  fillOpacity: 0,
  gradientMode: "none",
  showPoints: "auto",
  pointSize: 5,
  spanNulls: false,
  axisPlacement: "auto",
  axisSoftMax: undefined,
  scaleDistribution: { type: "linear" },
  hideFrom: { legend: false, tooltip: false, viz: false },
  stacking: { mode: "none", group: "A" },
};

// What of a panel's configuration can become that of a field.
const item = (path, isCustom) => ({
  id: isCustom ? `custom.${path}` : path,
  name: path,
  path,
  isCustom,
  process: (value) => value,
  shouldApply: () => true,
});
const fieldConfigRegistry = new Registry(() => [
  ...["unit", "min", "max", "decimals", "color"].map((path) => item(path, false)),
  ...Object.keys(LINES).map((path) => item(path, true)),
]);

// A frame for each series, as the data source for Prometheus makes them, with gaps where it has no value.
function frame(refId, legend, { metric, values }) {
  const at = Array.from({ length: (to - from) / step + 1 }, (_, n) => from + n * step);
  const known = new Map(values.map(([when, value]) => [when, Number(value)]));
  const finite = (value) => (Number.isFinite(value) ? value : null);
  const displayNameFromDS = legend.replace(/{{(\w+)}}/g, (_, label) => metric[label] ?? "");
  return {
    refId,
    length: at.length,
    fields: [
      {
        name: "Time",
        type: FieldType.time,
        config: { interval: step * 1000 },
        values: at.map((when) => when * 1000),
      },
      {
        name: "Value",
        type: FieldType.number,
        config: { displayNameFromDS },
        labels: metric,
        values: at.map((when) => finite(known.get(when))),
      },
    ],
  };
}

function frames(panel) {
  const { defaults, overrides } = panel.fieldConfig;
  const custom = { ...LINES, ...defaults.custom };
  return applyFieldOverrides({
    data: answers[panel.id].flatMap(({ refId, legend, series }) => series.map((one) => frame(refId, legend, one))),
    fieldConfig: { defaults: { color: COLOR, ...defaults, custom }, overrides },
    fieldConfigRegistry,
    replaceVariables: (text) => text,
    theme,
    timeZone: "utc",
  });
}

function Panel({ panel }) {
  const { x, y, w, h } = panel.gridPos;
  const place = { position: "absolute", left: x * COLUMN + GAP / 2, top: y * ROW + GAP / 2 };
  if (panel.type === "row") {
    return <h4 style={{ ...place, padding: GAP / 2 }}>{panel.title.replace("$volume", volume)}</h4>;
  }
  const legend = { ...LEGEND, ...panel.options?.legend };
  const time = { timeRange, timeZone: "utc" };
  return (
    <div style={place}>
      <PanelChrome title={panel.title} width={w * COLUMN - GAP} height={h * ROW - GAP}>
        {(width, height) => <TimeSeries frames={frames(panel)} {...time} {...{ width, height, legend }} />}
      </PanelChrome>
    </div>
  );
}

createRoot(document.getElementById("page")).render(
  <ThemeContext.Provider value={theme}>
    <GlobalStyles />
    {dashboard.panels.map((panel) => (
      <Panel key={panel.id} panel={panel} />
    ))}
  </ThemeContext.Provider>,
);
