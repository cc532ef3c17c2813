import react from '@vitejs/plugin-react';
import { defineConfig } from 'vite';

export default defineConfig({
  plugins: [react()],
  base: './',
  build: { chunkSizeWarningLimit: 20000, sourcemap: false },
  define: { 'process.env.NODE_ENV': '"production"' },
});
