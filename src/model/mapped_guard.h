// model/mapped_guard.h -- keeps the process alive when pages of a mapped file cannot be read: the file shrank
// under the mapping, or its disk failed. The kernel then raises SIGBUS at the load that touched them; the
// guard puts pages of zeros there, remembers that the mapping is torn, and lets the load go on. What was
// computed from the zeros is wrong, so whoever uses the mapping asks mapping_torn before it hands anything
// out (docs/adr/0009-torn-mappings.md). Used by mapped_file.cc only. Linux.
#pragma once
#include <cstdint>

namespace se {

// Watches [data, data + bytes), which starts a page. The first call installs the handler; faults elsewhere go
// to the handler that was there before. -1: as many mappings as there may be (4096) are watched already.
int guard_mapping(const uint8_t* data, int64_t bytes);
// Before the mapping goes. No other thread may be reading it.
void unguard_mapping(int slot);
// Whether a page could not be read since guard_mapping; stays true. Any thread.
bool mapping_torn(int slot);

}  // namespace se
