// kernels/attention/drive.h -- the two passes over a KeySource. Internal to this folder.
#pragma once
#include "kernels/attention/walk.h"

namespace se::cpu {

// Writes args.out and args.lse for the tokens of args.list's rows. The present is source.present.
void attend(const AttendArgs& args, const KeySource& source, Stream& stream);
// The same over the blocks of args.blocks.
void attend_blocks(const AttendArgs& args, const KeySource& source, Stream& stream);
// The same for latent keys and args in head space (args.expanded).
void attend_expanded(const AttendArgs& args, const KeySource& source, Stream& stream);
// Writes args.logits: at the keys' linear places for a part; at j - kv_from[row] for the present, causally.
void logits(const AttendArgs& args, const KeySource& source, Stream& stream);

}  // namespace se::cpu
