// kernels/attention/prompt_tile.h -- a tile of a prompt's queries against the keys of one KV head, with
// matrix tiles (AMX), with vectors whose lanes are query rows (AVX-512), or row by row over an AttentionCore.
// Internal to this folder; plain types only: the first two share no inline code with baseline files.
//
// Numbers, AVX-512: F32 products and sums, ascending channels and keys.
// AMX: queries and weights go in as three BF16 pieces of eight bits each, keys and values as many as
// their bits need (BF16 one, F16 two, F32 three), cut off one after the other, so that the pieces add up to
// the number exactly. Of the products those below 2^-24 of the first are left out; sums are F32. The error is
// that of F32 dots, not of BF16 ones.
//
// A result belongs to its query row and the places of the keys: blocks begin at multiples of kKeyBlock
// places, each split sums by itself and is added to the ones before. Rows are lanes; none touches another.
#pragma once
#include <cstdint>

#include "kernels/attention/core.h"

namespace se::cpu {

inline constexpr int kPromptRows = 128;  // query rows (tokens x heads of a group) that share a packed block

struct PromptTile {  // one thread's work on one tile; all memory is `scratch`, 64-byte aligned
  int rows = 0, k_dim = 0, v_dim = 0;
  float scale = 1;
  char* scratch = nullptr;
};

struct PromptCore {
  int64_t (*bytes)(int rows, int k_dim, int v_dim);  // of scratch
  // q[r]: f32 [k_dim]. Ends with finish(), on the same thread.
  void (*begin)(const PromptTile& tile, const float* const* q);
  // Folds n <= kKeyBlock keys in. Row r sees keys from[r] .. seen[r] (from null: 0; seen null: all n). Values
  // of keys that a row does not see change no bit of it, whatever they hold.
  void (*block)(const PromptTile& tile,
                const void* const* keys,
                const void* const* values,
                RowType type,
                int n,
                const int32_t* from,
                const int32_t* seen);
  void (*end_split)(const PromptTile& tile);  // after the last block of every split
  // out[r]: f32 [v_dim]; lse[r]. Nothing seen: zeros and -inf.
  void (*finish)(const PromptTile& tile, float* const* out, float* const* lse);
  bool as_they_lie = true;  // plain keys are taken where they lie, of any row type; else widened by the walk
};

extern const PromptCore kPromptAmx;
extern const PromptCore kPromptAvx512;
// The rows of a tile as attention_core() attends them, bit for bit: for block lists where there are no tiles.
extern const PromptCore kPromptRowByRow;
const PromptCore* prompt_core();  // of isa(); null: none, prompts go as decode rows do

}  // namespace se::cpu
