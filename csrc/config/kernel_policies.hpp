// BuiltInOf<variant>: the schedule policies that a backward kernel of that variant is compiled
// with, as one policy.
#pragma once

#include "config/kernel_key.hpp"
#include "schedule/any_of.hpp"

namespace dash::schedule {

template <Variant kVariant>
struct PoliciesOf {
  // Whether some call that the variant serves can have the policy.
  template <class P>
  static constexpr bool includes() {
    if constexpr (kVariant == Variant::kGeneral) {
      return true;
    } else {
      MaskKind const mask = kVariant == Variant::kCausal ? MaskKind::kCausal : MaskKind::kFull;
      return P::supports(mask) && (P::kLegalForPacked || kVariant != Variant::kPackedFull);
    }
  }
};

template <Variant kVariant>
using BuiltInOf = decltype(including<PoliciesOf<kVariant>>(BuiltIn{}));

static_assert(Policy<BuiltInOf<Variant::kFull>> && Policy<BuiltInOf<Variant::kCausal>> &&
                  Policy<BuiltInOf<Variant::kPackedFull>> && Policy<BuiltInOf<Variant::kGeneral>>,
              "what the kernels are compiled with fulfils the policy contract");

}  // namespace dash::schedule
