#include "textflag.h"

// func call32(number uintptr) uintptr
TEXT ·call32(SB), NOSPLIT, $0-16
	MOVQ number+0(FP), AX
	INT  $0x80
	MOVQ AX, ret+8(FP)
	RET
