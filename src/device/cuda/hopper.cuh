// device/cuda/hopper.cuh -- what only sm_90a has: barriers that count bytes, the tensor copy engine, and the
// matrix instructions of a warpgroup (four warps from a multiple of four on). Device code only.
//
// Tiles in shared memory are rows of 128 bytes (64 numbers of 16 bits, 128 of 8), whose 16-byte pieces the
// copy engine permutes within groups of 8 rows ("128-byte swizzle"); tiles begin at multiples of 1,024 bytes.
#pragma once
#include <cuda.h>

#include <cstdint>

// Sums of a warpgroup product as operands of inline assembly, which takes no array.
#define SE_SUMS_4(d, i) "+f"(d[(i)]), "+f"(d[(i) + 1]), "+f"(d[(i) + 2]), "+f"(d[(i) + 3])
#define SE_SUMS_8(d, i) SE_SUMS_4(d, i), SE_SUMS_4(d, (i) + 4)
#define SE_SUMS_24(d, i) SE_SUMS_8(d, i), SE_SUMS_8(d, (i) + 8), SE_SUMS_8(d, (i) + 16)
#define SE_SUMS_32(d) SE_SUMS_24(d, 0), SE_SUMS_8(d, 24)
#define SE_SUMS_64(d, i) \
  SE_SUMS_24(d, i), SE_SUMS_24(d, (i) + 24), SE_SUMS_8(d, (i) + 48), SE_SUMS_8(d, (i) + 56)

namespace se::cuda {

__device__ __forceinline__ uint32_t shared_address(const void* p) {
  return uint32_t(__cvta_generic_to_shared(p));
}

// Barriers in shared memory, by address. A phase ends when `count` threads have arrived and all bytes
// announced in it have come.
__device__ __forceinline__ void barrier_init(uint32_t at, int count) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(at), "r"(count) : "memory");
}
__device__ __forceinline__ void barrier_arrive(uint32_t at) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(at) : "memory");
}
__device__ __forceinline__ void barrier_arrive_expecting(uint32_t at, int bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(at), "r"(bytes) : "memory");
}
// Arrives when the copies that this thread has started (copy16) are done; one of the barrier's count.
__device__ __forceinline__ void barrier_arrive_copied(uint32_t at) {
  asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(at) : "memory");
}
__device__ __forceinline__ void barrier_wait(uint32_t at, uint32_t parity) {
  asm volatile(
      "{ .reg .pred done; again: mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1; "
      "@!done bra again; }" ::"r"(at),
      "r"(parity)
      : "memory");
}
// After barrier_init, before the barrier's first use by the copy engine.
__device__ __forceinline__ void barrier_init_done() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}
// Shared memory written by ordinary stores is about to be read by the copy engine or a warpgroup's matrices.
__device__ __forceinline__ void fence_shared_writes() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}
// The address, in block `rank` of the cluster, of what lies at `at` in this one: for the three below alone.
__device__ __forceinline__ uint32_t in_block(uint32_t at, unsigned rank) {
  uint32_t there;
  asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(at), "r"(rank));
  return there;
}
__device__ __forceinline__ void barrier_arrive_there(uint32_t at) {
  asm volatile("mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%0];" ::"r"(at) : "memory");
}
// Stores whose bytes count for a barrier of the block that they go to.
__device__ __forceinline__ void store_counted(uint32_t to, uint32_t done, float x) {
  asm volatile("st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.f32 [%0], %1, [%2];" ::"r"(to),
               "f"(x),
               "r"(done)
               : "memory");
}
__device__ __forceinline__ void store_counted(uint32_t to, uint32_t done, const float (&x)[2]) {
  asm volatile(
      "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v2.f32 [%0], {%1, %2}, [%3];" ::"r"(to),
      "f"(x[0]),
      "f"(x[1]),
      "r"(done)
      : "memory");
}
__device__ __forceinline__ void store_counted(uint32_t to, uint32_t done, const float (&x)[4]) {
  asm volatile(
      "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 [%0], {%1, %2, %3, %4}, [%5];" ::"r"(
          to),
      "f"(x[0]),
      "f"(x[1]),
      "f"(x[2]),
      "f"(x[3]),
      "r"(done)
      : "memory");
}
// A barrier of `threads` threads of a block, by number (1 to 15; 0 is __syncthreads).
__device__ __forceinline__ void named_sync(int id, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}
__device__ __forceinline__ void named_arrive(int id, int threads) {
  asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

// A box of a tensor map to shared memory; out of bounds: zeros. Its bytes count for the barrier `done`.
__device__ __forceinline__ void copy_box(
    uint32_t to, const CUtensorMap& map, uint32_t done, int c0, int c1, int c2, int c3, int c4) {
  asm volatile(
      "cp.async.bulk.tensor.5d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4, %5, "
      "%6, %7}], [%2];" ::"r"(to),
      "l"(&map),
      "r"(done),
      "r"(c0),
      "r"(c1),
      "r"(c2),
      "r"(c3),
      "r"(c4)
      : "memory");
}
// The same for bytes that lie one after another; all of it in multiples of 16.
__device__ __forceinline__ void copy_bytes(uint32_t to, const void* from, uint32_t done, int bytes) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(to),
      "l"(from),
      "r"(bytes),
      "r"(done)
      : "memory");
}
// A box from shared memory, [channels][..] as it is there; what lies out of bounds is left out. The memory
// may be written again after boxes_read, by the thread that started the store; boxes_stored: before it ends.
__device__ __forceinline__ void store_box(const CUtensorMap& map, uint32_t from, int c0, int c1) {
  asm volatile(
      "cp.async.bulk.tensor.5d.global.shared::cta.bulk_group [%0, {%2, %3, %4, %4, %4}], [%1];" ::"l"(&map),
      "r"(from),
      "r"(c0),
      "r"(c1),
      "r"(0)
      : "memory");
  asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}
__device__ __forceinline__ void boxes_read() {
  asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");
}
__device__ __forceinline__ void boxes_stored() { asm volatile("cp.async.bulk.wait_group 0;" ::: "memory"); }
template <int kRegisters>
__device__ __forceinline__ void registers_down() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters));
}
template <int kRegisters>
__device__ __forceinline__ void registers_up() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

// Where a matrix operand lies: groups of 8 rows of 128 bytes, `groups` bytes from one to the next. Rows hold
// k (of 64 numbers; `next` is unused), or m or n: `next` is then the distance of their next 64. Adding to the
// descriptor moves it by 16 bytes a unit.
__device__ __forceinline__ uint64_t operand(uint32_t at, int groups, int next = 16) {
  return uint64_t((at & 0x3ffff) >> 4) | uint64_t(next >> 4) << 16 | uint64_t(groups >> 4) << 32 |
         uint64_t(1) << 62;
}
// Registers and shared memory that this thread wrote are ready for the matrix instructions that follow.
__device__ __forceinline__ void wgmma_begin() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void wgmma_commit() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
// All but the last kPending groups are done. Then hand their results to wgmma_take before reading them.
template <int kPending>
__device__ __forceinline__ void wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
}
template <int kN>
__device__ __forceinline__ void wgmma_take(float (&d)[kN]) {
#pragma unroll
  for (int i = 0; i < kN; ++i) asm volatile("" : "+f"(d[i])::"memory");
}

// d += A B (d = A B unless `add`): 64 rows, 128 columns, 16 of k. Result, lane = 4 g + c of warp w: d[4 j ..]
// = (row 16 w + g, columns 8 j + 2 c, + 1), then row g + 8.
__device__ __forceinline__ void wgmma_128(float (&d)[64], uint64_t a, uint64_t b, int add) {
  asm volatile(
      "{ .reg .pred p; setp.ne.b32 p, %66, 0; "
      "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {"
      "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, "
      "%18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, "
      "%34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, %48, %49, "
      "%50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
      "}, %64, %65, p, 1, 1, 0, 0; }"
      : SE_SUMS_64(d, 0)
      : "l"(a), "l"(b), "r"(add));
}
// A from registers, B with its n dimension contiguous.
__device__ __forceinline__ void wgmma_128(float (&d)[64], const uint32_t* a, uint64_t b, int add) {
  asm volatile(
      "{ .reg .pred p; setp.ne.b32 p, %69, 0; "
      "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {"
      "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, "
      "%18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, "
      "%34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, %48, %49, "
      "%50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
      "}, {%64, %65, %66, %67}, %68, p, 1, 1, 1; }"
      : SE_SUMS_64(d, 0)
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(add));
}
// Operands of 8 bits (E4M3), both with k contiguous: 32 of k. The tensor cores keep about 14 bits of a sum:
// add up at most 128 of k before you move it elsewhere.
__device__ __forceinline__ void wgmma_128_e4m3(float (&d)[64], uint64_t a, uint64_t b, int add) {
  asm volatile(
      "{ .reg .pred p; setp.ne.b32 p, %66, 0; "
      "wgmma.mma_async.sync.aligned.m64n128k32.f32.e4m3.e4m3 {"
      "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, "
      "%19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35, "
      "%36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50, %51, %52, "
      "%53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
      "}, %64, %65, p, 1, 1; }"
      : SE_SUMS_64(d, 0)
      : "l"(a), "l"(b), "r"(add));
}
// 16-bit operands again, with 48 columns; the second with the rows of A contiguous instead of k.
__device__ __forceinline__ void wgmma_48(float (&d)[24], uint64_t a, uint64_t b, int add) {
  asm volatile(
      "{ .reg .pred p; setp.ne.b32 p, %26, 0; "
      "wgmma.mma_async.sync.aligned.m64n48k16.f32.bf16.bf16 {"
      "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, "
      "%18, %19, %20, %21, %22, %23"
      "}, %24, %25, p, 1, 1, 0, 0; }"
      : SE_SUMS_24(d, 0)
      : "l"(a), "l"(b), "r"(add));
}
__device__ __forceinline__ void wgmma_48_turned(float (&d)[24], uint64_t a, uint64_t b, int add) {
  asm volatile(
      "{ .reg .pred p; setp.ne.b32 p, %26, 0; "
      "wgmma.mma_async.sync.aligned.m64n48k16.f32.bf16.bf16 {"
      "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, "
      "%18, %19, %20, %21, %22, %23"
      "}, %24, %25, p, 1, 1, 1, 0; }"
      : SE_SUMS_24(d, 0)
      : "l"(a), "l"(b), "r"(add));
}
// A from registers, both with k contiguous: kN columns (8, 16, 48, 64), halves or BF16. The registers of A
// must stay as they are until the wait: hand them to wgmma_keep behind it.
#define SE_WGMMA_ROWS(kN, type, sums, list, a0, a1, a2, a3, b, p)                                     \
  asm volatile("{ .reg .pred p; setp.ne.b32 p, %" #p ", 0; wgmma.mma_async.sync.aligned.m64n" #kN     \
               "k16.f32." type "." type " {" list "}, {%" #a0 ", %" #a1 ", %" #a2 ", %" #a3 "}, %" #b \
               ", p, 1, 1, 0; }"                                                                      \
               : sums                                                                                 \
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b_at), "r"(add))
#define SE_LIST_4 "%0, %1, %2, %3"
#define SE_LIST_8 SE_LIST_4 ", %4, %5, %6, %7"
#define SE_LIST_24 SE_LIST_8 ", %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23"
#define SE_LIST_32 SE_LIST_24 ", %24, %25, %26, %27, %28, %29, %30, %31"
template <int kN, bool kHalves>
__device__ __forceinline__ void wgmma_rows(float (&d)[kN / 2],
                                           const uint32_t (&a)[4],
                                           uint64_t b_at,
                                           int add) {
  static_assert(kN == 8 || kN == 16 || kN == 48 || kN == 64);
  if constexpr (kN == 8 && kHalves) SE_WGMMA_ROWS(8, "f16", SE_SUMS_4(d, 0), SE_LIST_4, 4, 5, 6, 7, 8, 9);
  if constexpr (kN == 8 && !kHalves) SE_WGMMA_ROWS(8, "bf16", SE_SUMS_4(d, 0), SE_LIST_4, 4, 5, 6, 7, 8, 9);
  if constexpr (kN == 16 && kHalves)
    SE_WGMMA_ROWS(16, "f16", SE_SUMS_8(d, 0), SE_LIST_8, 8, 9, 10, 11, 12, 13);
  if constexpr (kN == 16 && !kHalves)
    SE_WGMMA_ROWS(16, "bf16", SE_SUMS_8(d, 0), SE_LIST_8, 8, 9, 10, 11, 12, 13);
  if constexpr (kN == 48 && kHalves)
    SE_WGMMA_ROWS(48, "f16", SE_SUMS_24(d, 0), SE_LIST_24, 24, 25, 26, 27, 28, 29);
  if constexpr (kN == 48 && !kHalves)
    SE_WGMMA_ROWS(48, "bf16", SE_SUMS_24(d, 0), SE_LIST_24, 24, 25, 26, 27, 28, 29);
  if constexpr (kN == 64 && kHalves)
    SE_WGMMA_ROWS(64, "f16", SE_SUMS_32(d), SE_LIST_32, 32, 33, 34, 35, 36, 37);
  if constexpr (kN == 64 && !kHalves)
    SE_WGMMA_ROWS(64, "bf16", SE_SUMS_32(d), SE_LIST_32, 32, 33, 34, 35, 36, 37);
}
#undef SE_WGMMA_ROWS
#undef SE_LIST_4
#undef SE_LIST_8
#undef SE_LIST_24
#undef SE_LIST_32
__device__ __forceinline__ void wgmma_keep(uint32_t (&a)[4]) {
  asm volatile("" : "+r"(a[0]), "+r"(a[1]), "+r"(a[2]), "+r"(a[3])::"memory");
}

}  // namespace se::cuda

#undef SE_SUMS_4
#undef SE_SUMS_8
#undef SE_SUMS_24
#undef SE_SUMS_32
#undef SE_SUMS_64
