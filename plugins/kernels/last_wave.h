// Which tiles of a product make up its last wave: one function for the host, and for kernels that read the number of
// rows on the device.
#ifndef BERTFUSE_KERNELS_LAST_WAVE_H_
#define BERTFUSE_KERNELS_LAST_WAVE_H_

#include <algorithm>
#include <cstdint>

#ifdef __CUDACC__
#define BERTFUSE_HOST_DEVICE __host__ __device__ __forceinline__
#else
#define BERTFUSE_HOST_DEVICE inline
#endif

namespace bertfuse::kernels {

// A panel is a row of tiles, counted in clusters; `clusters` of these tiles are computed at a time.
struct LastWave {
  int panel_rows;
  int tiles_per_panel;
  int clusters;
};

// How many of the first `panels` panels fill whole waves; those after them are the incomplete last wave.
template <class Int>
BERTFUSE_HOST_DEVICE Int FullPanels(const LastWave& wave, Int panels) {
  const Int tiles = panels * wave.tiles_per_panel;
  return (tiles - tiles % wave.clusters) / wave.tiles_per_panel;
}

template <class Int>
BERTFUSE_HOST_DEVICE Int Panels(const LastWave& wave, Int rows) {
  return rows / wave.panel_rows + (rows % wave.panel_rows != 0);
}

// Rows of the full panels.
template <class Int>
BERTFUSE_HOST_DEVICE Int RowsOfFullPanels(const LastWave& wave, Int rows) {
  const Int full = FullPanels(wave, Panels(wave, rows)) * wave.panel_rows;
  return full < rows ? full : rows;
}

// The most rows that the last wave has, for any number of rows up to `rows`.
inline int64_t MaxRowsLeft(const LastWave& wave, int64_t rows) {
  const int64_t panels = (int64_t{wave.clusters} + wave.tiles_per_panel - 2) / wave.tiles_per_panel;
  return std::min(panels * wave.panel_rows, rows);
}

}  // namespace bertfuse::kernels
#endif  // BERTFUSE_KERNELS_LAST_WAVE_H_
