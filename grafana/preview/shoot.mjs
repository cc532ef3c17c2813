// Takes pictures: node shoot.mjs DASHBOARDS OUT PROMETHEUS END  (see ../../Makefile, preview)
import { execFile } from 'node:child_process';
import { createServer } from 'node:http';
import { mkdtemp, readFile, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { promisify } from 'node:util';

const [dashboards, out, prometheus, end] = process.argv.slice(2);
const WIDTH = 1600;
const SHOTS = [
  { name: 'overview', file: 'dashboard-overview' },
  { name: 'circuit', file: 'dashboard-circuit', circuit: 'mcp:crm', service: 'refund-agent', environment: 'production', span: 3600 },
];
const KINDS = { '.html': 'text/html', '.js': 'text/javascript', '.css': 'text/css', '.json': 'application/json', '.woff2': 'font/woff2' };

const server = createServer(async (request, response) => {
  const { pathname } = new URL(request.url, 'http://localhost');
  const file = pathname.startsWith('/dashboards/')
    ? path.join(dashboards, path.basename(pathname))
    : path.join('dist', path.normalize(pathname === '/' ? '/index.html' : pathname));
  try {
    const body = await readFile(file);
    response.writeHead(200, { 'content-type': KINDS[path.extname(file)] ?? 'application/octet-stream' }).end(body);
  } catch {
    response.writeHead(404).end();
  }
});
await new Promise((ready) => server.listen(0, '127.0.0.1', ready));

for (const { name, file, span = 10800, ...variables } of SHOTS) {
  const board = JSON.parse(await readFile(path.join(dashboards, `${name}.json`)));
  const height = Math.max(...board.panels.map(({ gridPos }) => (gridPos.y + gridPos.h) * 38)) + 124;
  const query = new URLSearchParams({ dashboard: name, prometheus, end, span });
  for (const [key, value] of Object.entries(variables)) {
    query.set(`var-${key}`, value);
  }
  const profile = await mkdtemp(path.join(tmpdir(), 'preview-'));
  const flags = [
    '--headless', '--no-sandbox', '--disable-gpu', '--disable-quic', '--no-first-run', '--disable-background-networking',
    '--enable-logging=stderr', '--disable-component-update', '--disable-sync', '--hide-scrollbars', `--user-data-dir=${profile}`,
    '--virtual-time-budget=20000', `--window-size=${WIDTH},${height}`, `--screenshot=${path.resolve(out, `${file}.png`)}`,
  ];
  const { stderr } = await promisify(execFile)('chromium', [...flags, `http://127.0.0.1:${server.address().port}/?${query}`]);
  const said = stderr.split('\n').filter((line) => line.includes('CONSOLE'));
  if (said.length) {
    console.error(said.join('\n'));
  }
  await rm(profile, { recursive: true, force: true });
  console.log(`${file}.png`);
}
server.close();
