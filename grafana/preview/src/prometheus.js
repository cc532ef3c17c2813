// Asks Prometheus what a panel asks, and makes Grafana's data frames of the answer.
import { FieldType, getDisplayProcessor, toDataFrame } from '@grafana/data';

export function interpolate(text, context) {
  const words = {
    __interval: `${context.step}s`,
    __rate_interval: `${Math.max(context.step + context.every, 4 * context.every)}s`,
    __range: `${context.span}s`,
    ...context.variables,
  };
  return text.replace(/\$\{([A-Za-z_]\w*)(?::\w+)?\}|\$([A-Za-z_]\w*)/g, (whole, one, two) => words[one ?? two] ?? whole);
}

async function get(context, path, query) {
  const answer = await fetch(`${context.prometheus}/api/v1/${path}?${new URLSearchParams(query)}`);
  const body = await answer.json();
  if (body.status !== 'success') {
    throw new Error(body.error);
  }
  return body.data.result;
}

function legend(target, labels) {
  if (target.legendFormat === '__auto') {
    const text = Object.entries(labels).map(([name, value]) => `${name}="${value}"`);
    return text.length ? `{${text.join(', ')}}` : 'Value';
  }
  return target.legendFormat.replace(/\{\{\s*(\w+)\s*\}\}/g, (_, name) => labels[name] ?? '');
}

async function ask(target, panel, context) {
  const expr = interpolate(target.expr, context);
  if (target.instant) {
    const found = await get(context, 'query', { query: expr, time: context.end });
    return found.map(({ metric, value }) => ({ metric, times: [value[0] * 1000], values: [Number(value[1])] }));
  }
  const start = context.end - context.span;
  const found = await get(context, 'query_range', { query: expr, start, end: context.end, step: context.step });
  const grid = [];
  for (let at = start; at <= context.end + 0.001; at += context.step) {
    grid.push(at);
  }
  return found.map(({ metric, values }) => {
    const known = new Map(values.map(([at, value]) => [Math.round((at - start) / context.step), Number(value)]));
    return { metric, times: grid.map((at) => at * 1000), values: grid.map((_, place) => known.get(place) ?? null) };
  });
}

// The field configuration as Grafana applies it: defaults, then what is set for a series of that name.
function configure(field, name, panel, theme) {
  const { defaults, overrides } = panel.fieldConfig;
  const config = { ...defaults, custom: { ...defaults.custom }, displayName: name };
  for (const { matcher, properties } of overrides) {
    if (matcher.options === name) {
      for (const { id, value } of properties) {
        if (id.startsWith('custom.')) {
          config.custom[id.slice(7)] = value;
        } else {
          config[id] = value;
        }
      }
    }
  }
  field.config = config;
  field.display = getDisplayProcessor({ field, theme, timeZone: 'utc' });
}

export async function frames(panel, context, theme) {
  const answers = await Promise.all(panel.targets.map((target) => ask(target, panel, context)));
  let place = 0;
  return answers.flatMap((found, number) =>
    found.map(({ metric, times, values }) => {
      const frame = toDataFrame({
        refId: panel.targets[number].refId,
        fields: [
          { name: 'Time', type: FieldType.time, values: times, config: {} },
          { name: 'Value', type: FieldType.number, values, labels: metric, config: {} },
        ],
      });
      const [time, value] = frame.fields;
      time.display = getDisplayProcessor({ field: time, theme, timeZone: 'utc' });
      const name = legend(panel.targets[number], metric);
      value.state = { displayName: name, seriesIndex: place++ };
      configure(value, name, panel, theme);
      return frame;
    })
  );
}

// What the transformations merge and organize make of a table's queries.
export async function rows(panel, context, theme) {
  const answers = await Promise.all(panel.targets.map((target) => ask(target, panel, context)));
  const shape = panel.transformations.find(({ id }) => id === 'organize').options;
  const merged = new Map();
  answers.forEach((found, number) => {
    for (const { metric, values } of found) {
      const { __name__, ...labels } = metric;
      const key = JSON.stringify(Object.entries(labels).sort());
      const value = answers.length > 1 ? `Value #${panel.targets[number].refId}` : 'Value';
      merged.set(key, { ...(merged.get(key) ?? labels), [value]: values[0] });
    }
  });
  const names = [...new Set([...merged.values()].flatMap(Object.keys))].filter((name) => !shape.excludeByName[name]);
  names.sort((a, b) => (shape.indexByName[a] ?? 99) - (shape.indexByName[b] ?? 99));
  const columns = names.map((name) => {
    const title = shape.renameByName[name] ?? name;
    const values = [...merged.values()].map((row) => row[name] ?? null);
    const number = name.startsWith('Value');
    const field = { name: title, type: number ? FieldType.number : FieldType.string, values, config: {} };
    configure(field, title, panel, theme);
    return field;
  });
  const [sort] = panel.options.sortBy;
  const order = [...merged.keys()].map((_, place) => place);
  if (sort) {
    const by = columns.find(({ name }) => name === sort.displayName).values;
    order.sort((a, b) => (sort.desc ? 1 : -1) * ((by[b] ?? -1) - (by[a] ?? -1)));
  }
  return { columns, order };
}
