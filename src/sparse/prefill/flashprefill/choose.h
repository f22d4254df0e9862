// choose.h -- which blocks of keys a tile of queries reads (spec: FlashPrefill-V2; README.md).
#pragma once
#include <cstdint>
#include <vector>

namespace se::flashprefill {

struct Rule {
  double threshold = 0.12;       // keep blocks of at least so much of the largest energy,
  int64_t sink = 2, window = 4;  // the first blocks, and those up to the queries' own
  int64_t block = 128;
  bool correction = true;  // full blocks before the tile that are left out count as their mean
};

// A tile: packed row r is the query at place first + (packed + r) / group, the places before `first` being
// past.
struct Tile {
  const float* const* q = nullptr;  // [rows] f32 [dim]
  int64_t rows = 0, packed = 0, group = 1, first = 0;
  int dim = 0;
  float scale = 1;
  int64_t place(int64_t r) const { return first + (packed + r) / group; }
  int64_t low() const { return place(0); }                              // place of its first query
  int64_t high() const { return place(rows - 1); }                      // of its last one
  int64_t blocks(int64_t block) const { return high() / block + 1; }    // that its last query sees
  int64_t active(int64_t block) const { return (high() + 1) / block; }  // of them, full ones: they are scored
};

// Writes the blocks that the tile reads, ascending, and those that count as their mean; both have room for
// tile.blocks(). energy: of the active blocks. Returns their numbers.
struct Counts {
  int32_t kept = 0, means = 0;
};
Counts choose(const Rule& rule, const Tile& tile, const float* energy, int32_t* kept, int32_t* means);
Counts keep_all(const Rule& rule, const Tile& tile, int32_t* kept);

// The slow twin: energies of the active blocks in double; means are f32 [blocks, dim].
std::vector<double> energies_ref(const Rule& rule, const Tile& tile, const float* means);
// Means of full blocks of `block` tokens in double: x f32 [tokens, dim] -> [tokens / block, dim].
std::vector<double> means_ref(const float* x, int64_t tokens, int64_t dim, int64_t block);

}  // namespace se::flashprefill
