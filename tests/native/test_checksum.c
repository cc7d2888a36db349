/* test_checksum.c - XXH64 (and SipHash) against vectors of the reference implementation.
 *
 * The data is byte i = 131 * i + 7; every tail length of the algorithm (32, 8, 4, 1) occurs. */
#include "fixture.h"
#include "internal.h"

struct vector {
    size_t bytes;
    uint64_t seed, hash;
};

/* clang-format off */
static const struct vector vectors[] = {
    {0, 0x0ULL, 0xEF46DB3751D8E999ULL},
    {0, 0x9E3779B185EBCA87ULL, 0x6EC6D05F61C7E7A7ULL},
    {1, 0x0ULL, 0xA96C7F0CE858BBB7ULL},
    {1, 0x9E3779B185EBCA87ULL, 0x0C810166B30122A5ULL},
    {3, 0x0ULL, 0xBED43740EE6332BBULL},
    {3, 0x9E3779B185EBCA87ULL, 0x7B4F2F575536D889ULL},
    {4, 0x0ULL, 0xFA212AE44B3BB23DULL},
    {4, 0x9E3779B185EBCA87ULL, 0x18F6C5E78F966CFAULL},
    {5, 0x0ULL, 0xD339DCC9AC8E6776ULL},
    {5, 0x9E3779B185EBCA87ULL, 0x7ADF1357510ADB46ULL},
    {7, 0x0ULL, 0x2744460DD675D2C0ULL},
    {7, 0x9E3779B185EBCA87ULL, 0x88B4AE4C1E174322ULL},
    {8, 0x0ULL, 0x994B676B71CE94DDULL},
    {8, 0x9E3779B185EBCA87ULL, 0xB7E496BBFB8404D4ULL},
    {9, 0x0ULL, 0x572B84C18B983AF8ULL},
    {9, 0x9E3779B185EBCA87ULL, 0x9664444BE47090AAULL},
    {12, 0x0ULL, 0xB92F588CE720786EULL},
    {12, 0x9E3779B185EBCA87ULL, 0x0130EA64987E01B9ULL},
    {16, 0x0ULL, 0x94AD0095E72B24D5ULL},
    {16, 0x9E3779B185EBCA87ULL, 0xB6316B2094429FC8ULL},
    {24, 0x0ULL, 0x0A3B0194F3AFE0B8ULL},
    {24, 0x9E3779B185EBCA87ULL, 0x7ED1302400F3FC77ULL},
    {31, 0x0ULL, 0x6711D55E306B5D8FULL},
    {31, 0x9E3779B185EBCA87ULL, 0xBF6B022699BB8376ULL},
    {32, 0x0ULL, 0x07F7B8E3BC5D6E25ULL},
    {32, 0x9E3779B185EBCA87ULL, 0x3ABF045074466999ULL},
    {33, 0x0ULL, 0x09F85EEB4E1CBE9FULL},
    {33, 0x9E3779B185EBCA87ULL, 0x884E59F42FB1CE66ULL},
    {40, 0x0ULL, 0xD25150177BA46490ULL},
    {40, 0x9E3779B185EBCA87ULL, 0xBBE74818683D5CACULL},
    {63, 0x0ULL, 0xB7C9968C066CB6A5ULL},
    {63, 0x9E3779B185EBCA87ULL, 0xFB6A31DF721C899EULL},
    {64, 0x0ULL, 0x50D4159A0411632EULL},
    {64, 0x9E3779B185EBCA87ULL, 0x1968F92919382D6FULL},
    {65, 0x0ULL, 0xD277176BFF863EFCULL},
    {65, 0x9E3779B185EBCA87ULL, 0x612ED73059BAC317ULL},
    {100, 0x0ULL, 0x9DDADA11D3DC2D8FULL},
    {100, 0x9E3779B185EBCA87ULL, 0x049465B864C1577BULL},
    {127, 0x0ULL, 0x54CF771B5423F6A7ULL},
    {127, 0x9E3779B185EBCA87ULL, 0x92D78E86DA743195ULL},
    {128, 0x0ULL, 0x0430E433B792E757ULL},
    {128, 0x9E3779B185EBCA87ULL, 0xC8F313F0782045BAULL},
    {1000, 0x0ULL, 0x0BF0BDBCC82EB373ULL},
    {1000, 0x9E3779B185EBCA87ULL, 0x48413C7233345A55ULL},
    {1024, 0x0ULL, 0x5960AF0C625ACFB7ULL},
    {1024, 0x9E3779B185EBCA87ULL, 0xB6A47F678347B368ULL},
};
/* clang-format on */

static void every_vector_holds_at_every_alignment(void)
{
    static uint8_t memory[1024 + 8];
    for (size_t shift = 0; shift < 8; shift++) {
        for (size_t i = 0; i < 1024; i++)
            memory[shift + i] = (uint8_t)(i * 131 + 7);
        for (size_t i = 0; i < sizeof vectors / sizeof vectors[0]; i++) {
            const struct vector *vector = &vectors[i];
            CHECK_EQ(mpq_xxh64(memory + shift, vector->bytes, vector->seed), vector->hash);
        }
    }
}

/* SipHash-2-4-128 of byte i = i, under the key 00 01 .. 0f; the reference's own vectors. */
static void siphash_holds(void)
{
    static const struct {
        size_t bytes;
        const char *hash;
    } known[] = {{0, "a3817f04ba25a8e66df67214c7550293"},
                 {1, "da87c1d86b99af44347659119b22fc45"},
                 {2, "8177228da4a45dc7fca38bdef60affe4"},
                 {63, "5150d1772f50834a503e069a973fbd7c"}};
    uint8_t data[64];
    for (unsigned i = 0; i < sizeof data; i++)
        data[i] = (uint8_t)i;
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        uint64_t secret[2], hash[2];
        char text[33];
        memcpy(secret, data, sizeof secret);
        mpq_siphash128(secret, data, known[i].bytes, hash);
        for (unsigned k = 0; k < 16; k++)
            snprintf(text + 2 * k, 3, "%02x", ((const uint8_t *)hash)[k]);
        CHECK(strcmp(text, known[i].hash) == 0);
    }
}

int main(void)
{
    RUN(every_vector_holds_at_every_alignment);
    RUN(siphash_holds);
    return 0;
}
