// Compiles if each kernel variant has exactly the policies that its calls can have.
#include "config/kernel_policies.hpp"

#include <type_traits>

using namespace dash;
using namespace dash::schedule;

template <Variant kVariant, class... P>
constexpr bool has = std::is_same_v<BuiltInOf<kVariant>, AnyOf<P...>>;

static_assert(has<Variant::kFull, Unordered, Ascending, Descending, Shift, Band, Ring>);
static_assert(has<Variant::kCausal, Unordered, Ascending, ShortestFirst, Descending,
                  SymmetricShift, Band, Mirrored, Comb>);
static_assert(has<Variant::kPackedFull, Unordered, Ascending, Descending, Band>);
static_assert(std::is_same_v<BuiltInOf<Variant::kGeneral>, BuiltIn>);
static_assert(BuiltInOf<Variant::kPackedFull>::kLegalForPacked && !BuiltIn::kLegalForPacked);

int main() { return 0; }
