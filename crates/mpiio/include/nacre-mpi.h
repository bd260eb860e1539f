/*
 * Patterns of Nacre's locks from datatypes of MPI. A program that includes this is linked with -lnacre and with the library of its MPI:
 * -lnacre_mpiio_mpich or -lnacre_mpiio_openmpi. The latter also keeps the atomic mode of MPI-IO, for files that are in it: docs/mpiio.md.
 */
#ifndef NACRE_MPI_H
#define NACRE_MPI_H

#include <mpi.h>
#include <nacre.h>

#include <stdlib.h>

#ifdef __cplusplus
extern "C" {
#endif

/*
 * Copies a datatype that is laid over a file into a buffer, as the text of a pattern with a zero behind it. Stores the length without the zero.
 * Returns a code of nacre.h, for which nacre_error_text() has no sentence.
 */
int nacre_mpi_pattern_text(MPI_Datatype datatype, int64_t displacement, int64_t count, char *buffer, size_t capacity,
                           size_t *length);

#ifdef __cplusplus
}
#endif

/*
 * Describes `count` copies of a datatype over a file, one after the other at the distance of its extent; the displacement 0 of the first one is at
 * the offset `displacement` in bytes. The datatype need not be committed, and may be freed afterwards. NACRE_UNSUPPORTED if its bytes are not in
 * the order of the file, as MPI demands of file types too; NACRE_INVALID if an argument is wrong or it is more than 32 deep. On failure `*pattern`
 * is NULL. MPI has to be initialised.
 */
static inline int nacre_mpi_pattern(MPI_Datatype datatype, MPI_Offset displacement, MPI_Count count,
                                    nacre_pattern **pattern) {
    size_t length = 0;
    int code = nacre_mpi_pattern_text(datatype, displacement, count, NULL, 0, &length);
    char *text;

    if (pattern == NULL) {
        return NACRE_INVALID;
    }
    *pattern = NULL;
    if (code != NACRE_TOO_SHORT) {
        return code;
    }
    text = (char *)malloc(length + 1);
    if (text == NULL) {
        return NACRE_OUT_OF_SPACE;
    }
    code = nacre_mpi_pattern_text(datatype, displacement, count, text, length + 1, &length);
    if (code == NACRE_OK) {
        code = nacre_pattern_parse(text, pattern);
    }
    free(text);
    return code;
}

#endif
