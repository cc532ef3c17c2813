// One component for each kind of panel. Time series, numbers and bars are Grafana's own; its state timeline and table
// are not published for use outside of Grafana, so those two are drawn here.
import { dateTime, FieldColorModeId, formattedValueToString, getDisplayProcessor } from '@grafana/data';
import { BarGauge, BigValue, TimeSeries, useTheme2 } from '@grafana/ui';
import React from 'react';

export function Nothing({ panel, width, height }) {
  const theme = useTheme2();
  const style = { width, height, display: 'flex', alignItems: 'center', justifyContent: 'center', textAlign: 'center' };
  return <div style={{ ...style, color: theme.colors.text.secondary }}>{panel.fieldConfig.defaults.noValue}</div>;
}

export function Stat({ panel, data, width, height }) {
  const theme = useTheme2();
  const field = data[0]?.fields[1];
  const last = field?.values.filter((value) => value !== null).at(-1) ?? null;
  const display =
    field?.display ?? getDisplayProcessor({ field: { type: 'number', config: panel.fieldConfig.defaults }, theme });
  const value = display(last);
  if (last === null) {
    value.text = panel.fieldConfig.defaults.noValue;
  }
  const { colorMode, graphMode, justifyMode, textMode } = panel.options;
  const sparkline = graphMode === 'area' && field ? { y: field, x: data[0].fields[0] } : undefined;
  return (
    <BigValue
      value={value} sparkline={sparkline} theme={theme} width={width} height={height}
      colorMode={colorMode} graphMode={graphMode} justifyMode={justifyMode} textMode={textMode} text={panel.options.text}
    />
  );
}

export function Series({ panel, data, width, height, context }) {
  const end = dateTime(context.end * 1000);
  const start = dateTime((context.end - context.span) * 1000);
  const range = { from: start, to: end, raw: { from: start, to: end } };
  return (
    <TimeSeries
      frames={data} timeRange={range} timeZone="utc" width={width} height={height} structureRev={1}
      legend={panel.options.legend} options={panel.options}
    />
  );
}

export function Bars({ panel, data, width, height }) {
  const theme = useTheme2();
  const shown = data.map(({ fields: [, field] }) => ({ field, value: field.values.at(-1) }));
  const top = Math.max(1, ...shown.map(({ value }) => value));
  const each = Math.min(panel.options.maxVizHeight, height / shown.length - 8);
  return (
    <div>
      {shown.map(({ field, value }) => (
        <div key={field.config.displayName} style={{ marginBottom: 8 }}>
          <BarGauge
            value={{ ...field.display(value), title: field.config.displayName }} theme={theme} width={width}
            height={each} orientation="horizontal" displayMode={panel.options.displayMode} showUnfilled
            field={{ ...field.config, min: 0, max: top, color: { mode: FieldColorModeId.Fixed, fixedColor: field.config.color.fixedColor } }}
            display={field.display} text={{ titleSize: 13, valueSize: 14 }} namePlacement="left" valueDisplayMode="color"
          />
        </div>
      ))}
    </div>
  );
}

function ticks(context) {
  const every = context.span > 7200 ? 1800 : context.span > 1800 ? 600 : 60;
  const first = Math.ceil((context.end - context.span) / every) * every;
  return Array.from({ length: Math.floor((context.end - first) / every) + 1 }, (_, n) => first + n * every);
}

export function Lanes({ panel, data, width, height, context }) {
  const theme = useTheme2();
  const name = Math.min(360, 12 + 6.7 * Math.max(...data.map(({ fields }) => fields[1].config.displayName.length)));
  const shown = data.slice(0, panel.options.perPage);
  const axis = 20;
  const foot = 24;
  const each = (height - axis - foot) / shown.length;
  const x = (seconds) => name + ((seconds - (context.end - context.span)) / context.span) * (width - name - 6);
  const used = new Map();
  const bars = shown.flatMap(({ fields: [time, value] }, lane) => {
    const found = [];
    value.values.forEach((code, place) => {
      const open = found.at(-1);
      if (open && open.code === code) {
        open.to = place + 1;
      } else {
        found.push({ code, from: place, to: place + 1 });
      }
    });
    return found.filter(({ code }) => code !== null).map(({ code, from, to }) => {
      const { text, color } = value.display(code);
      used.set(text, color);
      const left = x(time.values[from] / 1000);
      const right = x(Math.min(context.end, time.values[from] / 1000 + (to - from) * context.step));
      return (
        <rect key={`${lane}-${from}`} x={left} y={lane * each + each * 0.1} width={Math.max(1, right - left)}
          height={each * 0.8} fill={color} fillOpacity={panel.fieldConfig.defaults.custom.fillOpacity / 100} />
      );
    });
  });
  const font = { fontFamily: theme.typography.fontFamily, fontSize: 12, fill: theme.colors.text.primary };
  return (
    <svg width={width} height={height}>
      {bars}
      {shown.map(({ fields }, lane) => (
        <text key={lane} x={name - 8} y={lane * each + each / 2 + 4} textAnchor="end" {...font}>
          {fields[1].config.displayName}
        </text>
      ))}
      {ticks(context).map((at) => (
        <text key={at} x={x(at)} y={height - foot - 4} textAnchor="middle" {...font} fill={theme.colors.text.secondary}>
          {dateTime(at * 1000).utc().format('HH:mm')}
        </text>
      ))}
      {[...used].map(([text, color], place) => (
        <g key={text} transform={`translate(${12 + place * 110}, ${height - 14})`}>
          <rect width={14} height={4} y={2} rx={1} fill={color} />
          <text x={20} y={9} {...font}>{text}</text>
        </g>
      ))}
    </svg>
  );
}

export function Table({ panel, table, width, height }) {
  const theme = useTheme2();
  const { columns, order } = table;
  const line = `1px solid ${theme.colors.border.weak}`;
  const align = ({ type, config }) => (config.custom.align === 'left' || type !== 'number' ? 'left' : 'right');
  const cell = { padding: '0 8px', height: 34, whiteSpace: 'nowrap', overflow: 'hidden', textOverflow: 'ellipsis', borderBottom: line, borderRight: line };
  return (
    <div style={{ width, height, overflow: 'hidden' }}>
      <table style={{ width: '100%', borderCollapse: 'collapse', fontSize: 14, tableLayout: 'fixed' }}>
        <thead>
          <tr>
            {columns.map((field) => (
              <th key={field.name} style={{ ...cell, width: field.config.custom.width, textAlign: align(field), color: theme.colors.primary.text, fontWeight: 500 }}>
                {field.name}
                {panel.options.sortBy[0]?.displayName === field.name ? ' ↓' : ''}
              </th>
            ))}
          </tr>
        </thead>
        <tbody>
          {order.map((place) => (
            <tr key={place}>
              {columns.map((field) => {
                const raw = field.values[place];
                const shown = field.display(raw);
                const empty = raw === null && field.name !== 'State';
                const text = empty ? (field.type === 'number' ? field.config.noValue : '') : formattedValueToString(shown);
                const kind = field.config.custom.cellOptions.type;
                const style = { ...cell, textAlign: align(field) };
                if (kind === 'color-background') {
                  Object.assign(style, { background: shown.color, color: theme.colors.getContrastText(shown.color ?? '#000') });
                } else if (kind === 'color-text') {
                  style.color = shown.color;
                } else if (field.config.links) {
                  style.color = theme.colors.text.link;
                }
                return <td key={field.name} style={style}>{text}</td>;
              })}
            </tr>
          ))}
        </tbody>
      </table>
    </div>
  );
}
