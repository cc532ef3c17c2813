// A page that draws one dashboard: ?dashboard=overview&prometheus=http://127.0.0.1:9090&end=...&span=10800&every=15&var-circuit=...
import { createTheme, EventBusSrv, ThemeContext } from '@grafana/data';
import { GlobalStyles, PanelChrome, PanelContextProvider } from '@grafana/ui';
import React from 'react';
import { createRoot } from 'react-dom/client';
import { MemoryRouter } from 'react-router-dom';

import { Bars, Lanes, Nothing, Series, Stat, Table } from './panels.jsx';
import { frames, rows } from './prometheus.js';

const KINDS = { stat: Stat, timeseries: Series, bargauge: Bars, 'state-timeline': Lanes };
const CELL = 30;
const GAP = 8;
const HEAD = 92;

const query = new URLSearchParams(window.location.search);
const theme = createTheme({ colors: { mode: query.get('theme') ?? 'dark' } });
const span = Number(query.get('span') ?? 10800);
const every = Number(query.get('every') ?? 15); // the data source's scrape interval
const end = Math.floor(Number(query.get('end') ?? Date.now() / 1000) / every) * every;
const context = {
  prometheus: query.get('prometheus'), end, span, every,
  step: Math.max(every, Math.round(span / 240 / every) * every),
  variables: Object.fromEntries(
    ['environment', 'namespace', 'service', 'circuit'].map((name) => [name, query.get(`var-${name}`) ?? '.*'])
  ),
};

async function load(panel) {
  if (panel.type === 'row') {
    return { panel };
  }
  return panel.type === 'table'
    ? { panel, table: await rows(panel, context, theme) }
    : { panel, data: await frames(panel, context, theme) };
}

function Panel({ panel, data, table, column }) {
  const { x, y, w, h } = panel.gridPos;
  const place = { position: 'absolute', left: x * (column + GAP), top: y * (CELL + GAP) };
  if (panel.type === 'row') {
    return <h6 style={{ ...place, margin: 0, paddingTop: 6, fontSize: 15 }}>{panel.collapsed ? '› ' : '⌄ '}{panel.title}</h6>;
  }
  const size = { width: w * column + (w - 1) * GAP, height: h * CELL + (h - 1) * GAP };
  return (
    <div style={place}>
      <PanelChrome title={panel.title} description={panel.description} {...size}>
        {(width, height) => {
          const inside = { panel, data, table, width, height, context };
          if (table) {
            return table.order.length ? <Table {...inside} /> : <Nothing {...inside} />;
          }
          const Kind = KINDS[panel.type];
          return data.length || panel.type === 'stat' ? <Kind {...inside} /> : <Nothing {...inside} />;
        }}
      </PanelChrome>
    </div>
  );
}

function Variable({ variable }) {
  const chosen = context.variables[variable.name];
  const text = variable.type === 'datasource' ? variable.query : chosen === '.*' ? 'All' : chosen;
  const box = { border: `1px solid ${theme.colors.border.medium}`, borderRadius: 2, display: 'inline-flex', marginRight: 8 };
  return (
    <span style={box}>
      <span style={{ padding: '5px 8px', background: theme.colors.background.secondary }}>{variable.label}</span>
      <span style={{ padding: '5px 12px' }}>{text} ▾</span>
    </span>
  );
}

function Board({ board, loaded }) {
  const column = (window.innerWidth - 32 - 23 * GAP) / 24;
  return (
    <div style={{ padding: 16, background: theme.colors.background.canvas, minHeight: '100vh', color: theme.colors.text.primary }}>
      <div style={{ height: HEAD - 16, fontSize: 13 }}>
        <div style={{ display: 'flex', justifyContent: 'space-between', marginBottom: 12 }}>
          <b style={{ fontSize: 16 }}>{board.title}</b>
          <span>Last {span === 3600 ? 'hour' : span % 3600 ? `${Math.round(span / 60)} minutes` : `${span / 3600} hours`} ▾ &nbsp; ⟳ {board.refresh}</span>
        </div>
        {board.templating.list.map((variable) => <Variable key={variable.name} variable={variable} />)}
      </div>
      <div style={{ position: 'relative' }}>
        {loaded.map((one) => <Panel key={one.panel.id} {...one} column={column} />)}
      </div>
    </div>
  );
}

const answer = await fetch(`./dashboards/${query.get('dashboard')}.json`);
const board = await answer.json();
const loaded = await Promise.all(board.panels.map(load));
createRoot(document.getElementById('root')).render(
  <MemoryRouter>
    <ThemeContext.Provider value={theme}>
      <GlobalStyles />
      <PanelContextProvider value={{ eventsScope: 'global', eventBus: new EventBusSrv() }}>
        <Board board={board} loaded={loaded} />
      </PanelContextProvider>
    </ThemeContext.Provider>
  </MemoryRouter>
);
