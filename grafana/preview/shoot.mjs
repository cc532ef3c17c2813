// Takes pictures; run.py says of what, as one JSON document.
import { execFile } from 'node:child_process';
import { createServer } from 'node:http';
import { mkdtemp, readFile, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { promisify } from 'node:util';

const { dashboards, out, prometheus, end, every, shots } = JSON.parse(process.argv[2]);
const WIDTH = 1600;
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

for (const shot of shots) {
  const file = `dashboard-${shot.dashboard}`;
  const board = JSON.parse(await readFile(path.join(dashboards, `${shot.dashboard}.json`)));
  const height = Math.max(...board.panels.map(({ gridPos }) => (gridPos.y + gridPos.h) * 38)) + 124;
  const query = new URLSearchParams({ prometheus, end, every, ...shot });
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
