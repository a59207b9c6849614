// Which tiles of a product make up its last wave. Kernels that are told how many rows there are work it out themselves.
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

// A product's tiles lie in panels, rows of tiles; `clusters` of them are computed at a time.
struct LastWave {
  int panel_rows;
  int tiles_per_panel;
  int clusters;
};

// Panels of the first `panels` that fill waves; those after them are the last wave, which is incomplete.
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

// The most rows that RowsOfFullPanels() leaves, of any number up to `rows`.
inline int64_t MostRowsLeft(const LastWave& wave, int64_t rows) {
  const int64_t panels = (int64_t{wave.clusters} + wave.tiles_per_panel - 2) / wave.tiles_per_panel;
  return std::min(panels * wave.panel_rows, rows);
}

}  // namespace bertfuse::kernels
#endif  // BERTFUSE_KERNELS_LAST_WAVE_H_
