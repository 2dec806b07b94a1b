// Tiles in shared memory that are written along one axis and read along the other.

//- fd_tile_offset
// Where element (row, column) of a tile of rows of Row elements lies, in bytes. Chunks of 16 bytes are
// swapped within a row by the number of its vector of Vector rows, so that eight threads that read one
// column of eight such vectors meet different banks.
template <class T, int Vector, int Row>
__device__ __forceinline__ int fd_tile_offset(int row, int column) {
  constexpr int row_bytes = Row * (int)sizeof(T);
  constexpr int chunks = row_bytes / 16 < 8 ? row_bytes / 16 : 8;
  const int at = column * (int)sizeof(T);
  return row * row_bytes + (((at >> 4) ^ (row / Vector & (chunks - 1))) << 4 | (at & 15));
}

//- fd_turn_words
// Each x Each elements of 4 / Each bytes, one row a word, turned: word j becomes element j of the rows.
template <int Each>
__device__ __forceinline__ void fd_turn_words(unsigned int* w) {
  if constexpr (Each == 2) {
    const unsigned int lo = __byte_perm(w[0], w[1], 0x5410), hi = __byte_perm(w[0], w[1], 0x7632);
    w[0] = lo;
    w[1] = hi;
  } else if constexpr (Each == 4) {
    const unsigned int a = __byte_perm(w[0], w[1], 0x5140), b = __byte_perm(w[2], w[3], 0x5140);
    const unsigned int c = __byte_perm(w[0], w[1], 0x7362), d = __byte_perm(w[2], w[3], 0x7362);
    w[0] = __byte_perm(a, b, 0x5410);
    w[1] = __byte_perm(a, b, 0x7632);
    w[2] = __byte_perm(c, d, 0x5410);
    w[3] = __byte_perm(c, d, 0x7632);
  }
}

//- fd_turn_in
// Reads N rows of P neighbouring columns of a tile as P packs of N elements.
template <class T, int N, int P, int Row>
__device__ __forceinline__ void fd_turn_in(const unsigned char* tile, int row, int column,
                                           fd_pack<fd_words<T>(N)>* out) {
  constexpr int each = sizeof(T) < 4 ? 4 / (int)sizeof(T) : 1;
  constexpr int words = fd_words<T>(each);
#pragma unroll
  for (int p = 0; p < P; p += each) {
#pragma unroll
    for (int k = 0; k < N; k += each) {
      unsigned int w[each * words];
#pragma unroll
      for (int j = 0; j < each; ++j) {
        const T* from =
            reinterpret_cast<const T*>(tile + fd_tile_offset<T, N, Row>(row + k + j, column + p));
        const fd_pack<words> one = fd_load<T, each>(from);
#pragma unroll
        for (int i = 0; i < words; ++i) w[j * words + i] = one.w[i];
      }
      fd_turn_words<each>(w);
#pragma unroll
      for (int j = 0; j < each; ++j)
#pragma unroll
        for (int i = 0; i < words; ++i) out[p + j].w[k / each * words + i] = w[j * words + i];
    }
  }
}

//- fd_turn_out
// Writes P packs of N elements as N rows of P neighbouring columns of a tile.
template <class T, int N, int P, int Row>
__device__ __forceinline__ void fd_turn_out(unsigned char* tile, int row, int column,
                                            const fd_pack<fd_words<T>(N)>* in) {
  constexpr int each = sizeof(T) < 4 ? 4 / (int)sizeof(T) : 1;
  constexpr int words = fd_words<T>(each);
#pragma unroll
  for (int p = 0; p < P; p += each) {
#pragma unroll
    for (int k = 0; k < N; k += each) {
      unsigned int w[each * words];
#pragma unroll
      for (int j = 0; j < each; ++j)
#pragma unroll
        for (int i = 0; i < words; ++i) w[j * words + i] = in[p + j].w[k / each * words + i];
      fd_turn_words<each>(w);
#pragma unroll
      for (int j = 0; j < each; ++j) {
        fd_pack<words> one;
#pragma unroll
        for (int i = 0; i < words; ++i) one.w[i] = w[j * words + i];
        T* to = reinterpret_cast<T*>(tile + fd_tile_offset<T, N, Row>(row + k + j, column + p));
        fd_put_pack<T, each>(to, one);
      }
    }
  }
}
