// text/unicode_additions.h -- characters of Unicode 15.1 and 16.0 that utf8proc 2.8 (Unicode 15.0) does not
// know. The regular expressions of the reference tokenizers do; the ranges are exactly those where its
// classes differed from utf8proc's over all code points. Sorted, inclusive.
#pragma once
#include <cstdint>

#include "text/unicode.h"

namespace se::text {

struct ClassRange {
  int32_t first, last;
  CharClass cls;
};
inline constexpr ClassRange kNewClasses[] = {{0x897, 0x897, CharClass::kMark},
                                             {0x1B4E, 0x1B4F, CharClass::kPunctuation},
                                             {0x1B7F, 0x1B7F, CharClass::kPunctuation},
                                             {0x1C89, 0x1C8A, CharClass::kLetter},
                                             {0x2427, 0x2429, CharClass::kSymbol},
                                             {0x2FFC, 0x2FFF, CharClass::kSymbol},
                                             {0x31E4, 0x31E5, CharClass::kSymbol},
                                             {0x31EF, 0x31EF, CharClass::kSymbol},
                                             {0xA7CB, 0xA7CD, CharClass::kLetter},
                                             {0xA7DA, 0xA7DC, CharClass::kLetter},
                                             {0x105C0, 0x105F3, CharClass::kLetter},
                                             {0x10D40, 0x10D49, CharClass::kNumber},
                                             {0x10D4A, 0x10D65, CharClass::kLetter},
                                             {0x10D69, 0x10D6D, CharClass::kMark},
                                             {0x10D6E, 0x10D6E, CharClass::kPunctuation},
                                             {0x10D6F, 0x10D85, CharClass::kLetter},
                                             {0x10D8E, 0x10D8F, CharClass::kSymbol},
                                             {0x10EC2, 0x10EC4, CharClass::kLetter},
                                             {0x10EFC, 0x10EFC, CharClass::kMark},
                                             {0x11380, 0x11389, CharClass::kLetter},
                                             {0x1138B, 0x1138B, CharClass::kLetter},
                                             {0x1138E, 0x1138E, CharClass::kLetter},
                                             {0x11390, 0x113B5, CharClass::kLetter},
                                             {0x113B7, 0x113B7, CharClass::kLetter},
                                             {0x113B8, 0x113C0, CharClass::kMark},
                                             {0x113C2, 0x113C2, CharClass::kMark},
                                             {0x113C5, 0x113C5, CharClass::kMark},
                                             {0x113C7, 0x113CA, CharClass::kMark},
                                             {0x113CC, 0x113D0, CharClass::kMark},
                                             {0x113D1, 0x113D1, CharClass::kLetter},
                                             {0x113D2, 0x113D2, CharClass::kMark},
                                             {0x113D3, 0x113D3, CharClass::kLetter},
                                             {0x113D4, 0x113D5, CharClass::kPunctuation},
                                             {0x113D7, 0x113D8, CharClass::kPunctuation},
                                             {0x113E1, 0x113E2, CharClass::kMark},
                                             {0x116D0, 0x116E3, CharClass::kNumber},
                                             {0x11BC0, 0x11BE0, CharClass::kLetter},
                                             {0x11BE1, 0x11BE1, CharClass::kPunctuation},
                                             {0x11BF0, 0x11BF9, CharClass::kNumber},
                                             {0x11F5A, 0x11F5A, CharClass::kMark},
                                             {0x13460, 0x143FA, CharClass::kLetter},
                                             {0x16100, 0x1611D, CharClass::kLetter},
                                             {0x1611E, 0x1612F, CharClass::kMark},
                                             {0x16130, 0x16139, CharClass::kNumber},
                                             {0x16D40, 0x16D6C, CharClass::kLetter},
                                             {0x16D6D, 0x16D6F, CharClass::kPunctuation},
                                             {0x16D70, 0x16D79, CharClass::kNumber},
                                             {0x18CFF, 0x18CFF, CharClass::kLetter},
                                             {0x1CC00, 0x1CCEF, CharClass::kSymbol},
                                             {0x1CCF0, 0x1CCF9, CharClass::kNumber},
                                             {0x1CD00, 0x1CEB3, CharClass::kSymbol},
                                             {0x1E5D0, 0x1E5ED, CharClass::kLetter},
                                             {0x1E5EE, 0x1E5EF, CharClass::kMark},
                                             {0x1E5F0, 0x1E5F0, CharClass::kLetter},
                                             {0x1E5F1, 0x1E5FA, CharClass::kNumber},
                                             {0x1E5FF, 0x1E5FF, CharClass::kPunctuation},
                                             {0x1F8B2, 0x1F8BB, CharClass::kSymbol},
                                             {0x1F8C0, 0x1F8C1, CharClass::kSymbol},
                                             {0x1FA89, 0x1FA89, CharClass::kSymbol},
                                             {0x1FA8F, 0x1FA8F, CharClass::kSymbol},
                                             {0x1FABE, 0x1FABE, CharClass::kSymbol},
                                             {0x1FAC6, 0x1FAC6, CharClass::kSymbol},
                                             {0x1FADC, 0x1FADC, CharClass::kSymbol},
                                             {0x1FADF, 0x1FADF, CharClass::kSymbol},
                                             {0x1FAE9, 0x1FAE9, CharClass::kSymbol},
                                             {0x1FBCB, 0x1FBEF, CharClass::kSymbol},
                                             {0x2EBF0, 0x2EE5D, CharClass::kLetter}};

// Numbers of Unicode 17.0: known to the reference's Digits step, not to its regular expressions.
inline constexpr CodePointRange kNewerNumbers[] = {{0x11DE0, 0x11DE9}, {0x16FF4, 0x16FF6}};

}  // namespace se::text
